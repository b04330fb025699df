"""A script -> torch.distributed.run over it, with nccl or hidden GPUs, listening on loopback only.

torchrun FOLDER NPROC SCRIPT ARGS...
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import uuid
from pathlib import Path
from typing import Any


def use_loopback() -> None:
    """Listen on 127.0.0.1 only: torch's own store takes every interface, gloo and nccl the one of the host's name."""
    names = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    if names:
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = names[0]
    store = _loopback_store()
    for module in ("", ".rendezvous", ".elastic.rendezvous.c10d_rendezvous_backend"):
        setattr(importlib.import_module(f"torch.distributed{module}"), "TCPStore", store)  # noqa: B010  (for mypy)


def _loopback_store() -> Any:
    from torch.distributed import TCPStore

    class LoopbackStore(TCPStore):  # type: ignore[misc]  # torch is untyped here
        """A TCPStore whose server is handed a socket that is bound already."""

        def __init__(
            self, host_name: str, port: int, world_size: int | None = None, is_master: bool = False, **rest: Any
        ) -> None:
            if is_master:
                listener = socket.socket()
                listener.bind(("127.0.0.1", port))
                listener.listen(128)
                host_name, port = listener.getsockname()
                rest["master_listen_fd"] = listener.detach()
            super().__init__(host_name, port, world_size, is_master, **rest)

    return LoopbackStore


def main(argv: list[str]) -> None:
    """Decide the backend, then hand over to torch's own launcher."""
    folder, nproc, script = Path(argv[0]), int(argv[1]), argv[2:]
    try:
        import torch
        import torch.distributed.run
    except Exception as error:  # a broken installation says so in many ways
        (folder / "launch.json").write_text(json.dumps({"error": f"{type(error).__name__}: {error}"}))
        raise SystemExit(1) from error
    gpus = torch.cuda.device_count()
    cpu = gpus < nproc
    facts = {"torch": torch.__version__, "gpus": gpus, "backend": "gloo" if cpu else "nccl"}
    (folder / "launch.json").write_text(json.dumps(facts))
    if cpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["HIP_VISIBLE_DEVICES"] = ""
    os.environ["DDPIFY_VERIFY_CPU"] = "1" if cpu else ""
    use_loopback()
    torch.distributed.run.main(
        [
            f"--nproc-per-node={nproc}",
            "--nnodes=1",
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=127.0.0.1:0",
            "--local-addr=127.0.0.1",
            f"--rdzv-id={uuid.uuid4().hex}",
            "--max-restarts=0",
            "--monitor-interval=0.1",
            str(Path(__file__).parent),
            "rank",
            str(folder),
            *script,
        ]
    )
