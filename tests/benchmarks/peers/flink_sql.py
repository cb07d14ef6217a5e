"""The peer with Flink: starts `flink_job.py` with the Python of Flink's own environment, which needs older packages.

`make bench-peers` makes the environment and fetches the jars (`infra/setup_flink.sh`).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyspark

from benchmarks.peers.peer_job import read_job

CLONE = Path(__file__).resolve().parents[3]
PYTHON = CLONE / ".cache" / "flink" / "bin" / "python"


def main() -> None:
    """Replace this process by Flink's. Exits when its environment is missing."""
    if not PYTHON.is_file():
        sys.exit(f"there is no {PYTHON}: bash infra/setup_flink.sh")
    job = read_job(sys.argv[1])
    # Flink's Parquet needs classes of Hadoop; those of pyspark will do.
    hadoop = sorted((Path(pyspark.__file__).parent / "jars").glob("hadoop-client-*.jar"))
    own = {
        "HADOOP_CLASSPATH": os.pathsep.join(map(str, hadoop)),
        "JVM_ARGS": f"-Xmx{job.memory} -XX:+UseParallelGC",
        "PYTHONPATH": str(CLONE),
    }
    arguments = [str(PYTHON), "-m", "benchmarks.peers.flink_job", sys.argv[1]]
    os.execve(PYTHON, arguments, {**os.environ, **own})


if __name__ == "__main__":
    main()
