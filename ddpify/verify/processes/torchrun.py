"""A script -> torch.distributed.run over it, with nccl or hidden GPUs, listening on loopback only.

    torchrun FOLDER NPROC SCRIPT ARGS...

DDPIFY_VERIFY_NNODES starts as many launchers, as there would be on as many machines: they meet at the first one.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from .lifetime import die_with_parent


def use_loopback(listener: socket.socket | None = None) -> None:
    """Listen on 127.0.0.1 only: torch's own store takes every interface, gloo and nccl the one of the host's name.

    `listener` is bound already, to the port at which launchers meet.
    """
    names = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    if names:
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = names[0]
    store = _loopback_store(listener)
    for module in ("", ".rendezvous", ".elastic.rendezvous.c10d_rendezvous_backend"):
        setattr(importlib.import_module(f"torch.distributed{module}"), "TCPStore", store)  # noqa: B010  (for mypy)


def _listen(port: int, given: socket.socket | None) -> socket.socket:
    if given is not None and given.fileno() >= 0 and given.getsockname()[1] == port:
        return given
    listener = socket.socket()
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    return listener


def _loopback_store(given: socket.socket | None) -> Any:
    from torch.distributed import TCPStore

    class LoopbackStore(TCPStore):  # type: ignore[misc]  # torch is untyped here
        """A TCPStore whose server is handed a socket that is bound already."""

        def __init__(
            self, host_name: str, port: int, world_size: int | None = None, is_master: bool = False, **rest: Any
        ) -> None:
            if is_master:
                listener = _listen(port, given)
                host_name, port = listener.getsockname()
                rest["master_listen_fd"] = listener.detach()
            super().__init__(host_name, port, world_size, is_master, **rest)

    return LoopbackStore


def _visible(node: int, nproc: int) -> None:
    """The GPUs of one machine of several: each launcher sees its own share."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = listed.split(",") if listed else [str(i) for i in range((node + 1) * nproc)]
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names[node * nproc : (node + 1) * nproc])


def main(argv: list[str]) -> None:
    """Decide the backend, then hand over to torch's own launcher."""
    folder, nproc = Path(argv[0]), int(argv[1])
    node, port = int(os.environ.pop("DDPIFY_VERIFY_NODE", "0")), int(os.environ.pop("DDPIFY_VERIFY_PORT", "0"))
    nodes = int(os.environ.get("DDPIFY_VERIFY_NNODES", "1"))
    try:
        import torch
        import torch.distributed.run
    except Exception as error:  # a broken installation says so in many ways
        (folder / "launch.json").write_text(json.dumps({"error": f"{type(error).__name__}: {error}"}))
        raise SystemExit(1) from error
    if node == 0:
        gpus = torch.cuda.device_count()
        cpu = gpus < nproc * nodes
        facts = {"torch": torch.__version__, "gpus": gpus, "backend": "gloo" if cpu else "nccl"}
        (folder / "launch.json").write_text(json.dumps(facts))
        if os.environ.get("DDPIFY_VERIFY_PRETEND"):
            cpu = True
        if cpu:
            os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["HIP_VISIBLE_DEVICES"] = ""
        os.environ["DDPIFY_VERIFY_CPU"] = "1" if cpu else ""
    if nodes == 1:
        use_loopback()
        _launch(nproc, 1, 0, [], argv)
        return
    listener, others = None, list[subprocess.Popen[bytes]]()
    if node == 0:
        listener = _listen(0, None)
        port = listener.getsockname()[1]
        others = [_start(other, port, argv) for other in range(1, nodes)]
    if not os.environ["DDPIFY_VERIFY_CPU"]:
        _visible(node, nproc)
    use_loopback(listener)
    _launch(nproc, nodes, port, [f"--rdzv-conf=is_host={int(node == 0)}"], argv)
    for process in others:
        process.wait()


def _start(node: int, port: int, argv: list[str]) -> subprocess.Popen[bytes]:
    """Another launcher; the guard takes it away with everything else."""
    own = {"DDPIFY_VERIFY_NODE": str(node), "DDPIFY_VERIFY_PORT": str(port)}
    command = [sys.executable, "-u", str(Path(__file__).parent), "torchrun", *argv]
    env = {**os.environ, **own}
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, env=env, preexec_fn=die_with_parent)


def _launch(nproc: int, nodes: int, port: int, more: list[str], argv: list[str]) -> None:
    run = importlib.import_module("torch.distributed.run")
    run.main(
        [
            f"--nproc-per-node={nproc}",
            f"--nnodes={nodes}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint=127.0.0.1:{port}",
            "--local-addr=127.0.0.1",
            f"--rdzv-id={Path(argv[0]).name}",
            "--max-restarts=0",
            "--monitor-interval=0.1",
            *more,
            str(Path(__file__).parent),
            "rank",
            argv[0],
            *argv[2:],
        ]
    )
