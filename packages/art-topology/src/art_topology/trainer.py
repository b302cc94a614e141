"""The trainer: where its ranks run and how the model is divided among them.

The words for parallelism that everything else uses:

- *tp*, tensor parallel: the matrices of a layer are divided.
- *cp*, context parallel: the tokens of a row are divided.
- *dp*, data parallel: rows are divided. Derived: ``world / (tp * cp * pp)``.
- *pp*, pipeline parallel: the layers are divided into stages.
- *vpp*, virtual pipeline parallel: each rank holds this many separate runs of layers (interleaved schedule).
- *ep*, expert parallel: the experts of a layer are divided.
- *etp*, expert tensor parallel: the matrices of each expert are divided.
- *expert dp*: how often each expert is held. Derived: ``world / (etp * ep * pp)``.
"""

from typing import Annotated

import msgspec

from art_topology.cluster import CpuPlacement, EndpointSpec, GpuPlacement
from art_topology.spec import Spec, Ways


class MegatronTopologyConfig(Spec, frozen=True, kw_only=True):
    """How Megatron divides the model; the default is one rank. Data parallelism is what the ranks leave over.

    Args:
        tp: Ranks among which the matrices of a layer are divided (tensor parallel).
        cp: Ranks among which the tokens of a row are divided (context parallel).
        ep: Ranks among which the experts of a layer are divided (expert parallel).
        etp: Ranks among which the matrices of each expert are divided (expert tensor parallel). Unlike
            Megatron's, it does not follow ``tp`` when it is left out: it is 1.
        pp: Pipeline stages, into which the layers are divided.
        vpp: Separate runs of layers that each rank holds (virtual pipeline stages, interleaved schedule);
            None or 1 means none.
        vpp_microbatch_group_size: How many microbatches run at a time for one virtual stage (Megatron's
            ``microbatch_group_size_per_vp_stage``), at least ``pp``; by default ``pp``.
        sequence_parallel: Whether the tokens outside attention and MLP are divided among the ``tp`` ranks as
            well; by default if there are several.
        pipeline_layout: Which layers each stage holds, in megatron-core's notation
            (``pipeline_model_parallel_layout``), such as "Et*3|(tt|)*29,m|L"; instead of the four below. By
            default the layers are divided evenly.
        account_for_embedding_in_pipeline_split: Whether the embedding counts as a layer of the first stage.
        account_for_loss_in_pipeline_split: Whether the output layer and loss count as a layer of the last
            stage.
        num_layers_in_first_pipeline_stage: Layers of the first stage, if not as many as of the others.
        num_layers_in_last_pipeline_stage: Layers of the last stage, if not as many as of the others.
    """

    tp: Ways = 1
    cp: Ways = 1
    ep: Ways = 1
    etp: Ways = 1
    pp: Ways = 1
    vpp: Ways | None = None
    vpp_microbatch_group_size: Ways | None = None
    sequence_parallel: bool | None = None
    pipeline_layout: Annotated[str, msgspec.Meta(min_length=1, max_length=65536)] | None = None
    account_for_embedding_in_pipeline_split: bool = False
    account_for_loss_in_pipeline_split: bool = False
    num_layers_in_first_pipeline_stage: Ways | None = None
    num_layers_in_last_pipeline_stage: Ways | None = None


class TrainerMeshSpec(Spec, frozen=True, kw_only=True):
    """The ranks of one trainer.

    Args:
        placements: One per host, in the cluster's node order, all with equally many ranks: rank 0 is the
            first process of the first placement, and the ranks of a host are consecutive.
        parallel: How the model is divided among the ranks.
        rendezvous: Where rank 0 listens for the others; by default the address of its host and a port it
            chooses.
    """

    placements: Annotated[tuple[GpuPlacement | CpuPlacement, ...], msgspec.Meta(min_length=1)]
    parallel: MegatronTopologyConfig = MegatronTopologyConfig()
    rendezvous: EndpointSpec | None = None
