"""One vLLM deployment as one health, version, update and recovery domain.

:class:`ModelService` runs a deployment and activates adapters in it; a :class:`HostLauncher` starts its
processes on a host, :class:`LocalLauncher` on this one. :func:`build_environment` builds locked environments
into a cache.
"""

from art_serving.bundle import EnvironmentBundle
from art_serving.client import MemberClient
from art_serving.deployment import (
    ActivationReport,
    EngineOptions,
    EngineStats,
    Health,
    HostLauncher,
    MemberActivation,
    MemberLaunch,
    MemberState,
    Secret,
    ServiceState,
)
from art_serving.environment import (
    BuildProgress,
    Environment,
    build_environment,
    default_cache_root,
    find_environment,
)
from art_serving.errors import (
    ActivationError,
    EnvironmentBuildError,
    MemberError,
    NoRoomError,
    OptionsError,
    PreflightError,
    ServiceClosedError,
    ServingError,
)
from art_serving.local import LocalLauncher
from art_serving.service import ModelService
from art_serving.vllm_runtime import vllm_bundle, vllm_environment

__all__ = [
    "ActivationError",
    "ActivationReport",
    "BuildProgress",
    "EngineOptions",
    "EngineStats",
    "Environment",
    "EnvironmentBuildError",
    "EnvironmentBundle",
    "Health",
    "HostLauncher",
    "LocalLauncher",
    "MemberActivation",
    "MemberClient",
    "MemberError",
    "MemberLaunch",
    "MemberState",
    "ModelService",
    "NoRoomError",
    "OptionsError",
    "PreflightError",
    "Secret",
    "ServiceClosedError",
    "ServiceState",
    "ServingError",
    "build_environment",
    "default_cache_root",
    "find_environment",
    "vllm_bundle",
    "vllm_environment",
]
