"""Feed-forward layers: dense, and mixtures of experts."""

import msgspec

from art_topology.models.matrices import Matrix, Part, Vector


class DenseShape(msgspec.Struct, frozen=True, kw_only=True, tag="dense"):
    """A feed-forward layer of width ``inner_size``.

    Args:
        hidden_size: Features of the residual stream.
        inner_size: Features inside.
        gated: It has a gate beside the up-projection (SwiGLU and its like).
        bias: Its matrices add a bias.
    """

    hidden_size: int
    inner_size: int
    gated: bool = True
    bias: bool = False

    def matrices(self) -> tuple[Matrix, ...]:
        """Gate, up and down."""
        return _feed_forward("", "dense_mlp", self.hidden_size, self.inner_size, self.gated, self.bias)

    def vectors(self) -> tuple[Vector, ...]:
        """None."""
        return ()


class MoeShape(msgspec.Struct, frozen=True, kw_only=True, tag="moe"):
    """A mixture of experts, with or without a dense layer beside it (shared experts).

    Args:
        hidden_size: Features of the residual stream.
        experts: Routed experts.
        topk: Experts that each token is sent to.
        expert_size: Features inside a routed expert.
        shared_size: Features inside what every token passes through; 0: there is none.
        gated: Experts have a gate beside the up-projection.
        bias: The matrices of routed experts add a bias.
        router_bias: The router's scores add a trained bias (a correction bias is no parameter of
            transformers').
        shared_gate: The shared expert's output is scaled by a gate computed from the token.
        router_scale: The router scales its input per feature and its output per expert (Gemma 4).
    """

    hidden_size: int
    experts: int
    topk: int
    expert_size: int
    shared_size: int = 0
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    shared_gate: bool = False
    router_scale: bool = False

    def matrices(self) -> tuple[Matrix, ...]:
        """The router, the routed experts, and the shared expert with its gate."""
        hidden = self.hidden_size
        found = [
            Matrix(
                name="router",
                part="router",
                inputs=hidden,
                outputs=self.experts,
                bias=self.router_bias,
                adapted=False,
            )
        ]
        found += [
            msgspec.structs.replace(matrix, copies=self.experts, active=self.topk)
            for matrix in _feed_forward(
                "expert_", "routed_experts", hidden, self.expert_size, self.gated, self.bias
            )
        ]
        if self.shared_size:
            found += _feed_forward("shared_", "shared_experts", hidden, self.shared_size, self.gated, False)
        if self.shared_gate:
            found.append(
                Matrix(
                    name="shared_output_gate", part="shared_experts", inputs=hidden, outputs=1, adapted=False
                )
            )
        return tuple(found)

    def vectors(self) -> tuple[Vector, ...]:
        """Scales of the router."""
        if not self.router_scale:
            return ()
        return (
            Vector(name="router_scale", part="router", size=self.hidden_size),
            Vector(name="router_expert_scale", part="router", size=self.experts),
        )


def _feed_forward(
    prefix: str, part: Part, hidden: int, inner: int, gated: bool, bias: bool
) -> tuple[Matrix, ...]:
    def columns(name: str) -> Matrix:
        return Matrix(
            name=prefix + name, part=part, inputs=hidden, outputs=inner, bias=bias, divided="columns"
        )

    down = Matrix(name=prefix + "down", part=part, inputs=inner, outputs=hidden, bias=bias, divided="rows")
    return (columns("gate"), columns("up"), down) if gated else (columns("up"), down)
