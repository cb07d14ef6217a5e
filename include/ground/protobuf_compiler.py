"""Protobuf's compiler: the text of a schema and of those that it imports → their descriptors.

Why is in `spark_jobs/contract/adr-0008`.

Both readers of records work by the descriptors, which need no compiler.
"""

from __future__ import annotations

import subprocess
import sys
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

MAIN = "record.proto"
SECONDS = 60
REFUSED = "// "
"""How the text of a schema begins that the compiler refused: its words follow in the line."""


def compiled(text: str, imported: Mapping[str, str]) -> str:
    """Return the descriptors of a schema, the file's own last, in base64; of a wrong one its text with the reason.

    `imported`: the texts of the files that it imports, and that these import, by name.
    """
    with TemporaryDirectory() as folder:
        for name, content in (*imported.items(), (MAIN, text)):
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts:
                return f"{REFUSED}imports {name}, which is no name of a file\n{text}"
            file = Path(folder, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content, "utf-8")
        found = Path(folder, "descriptors")
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", "--include_imports", f"-o{found}", MAIN]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        if done.returncode == 0:
            return b64encode(found.read_bytes()).decode("ascii")
        # The compiler's own log stands there too.
        words = [line for line in done.stderr.replace(f"{folder}/", "").splitlines() if ".proto:" in line]
        return f"{REFUSED}is refused by Protobuf's compiler: {(words or ['no reason given'])[0][:200]}\n{text}"
