"""The table of cuda's names in the documents, made from the code: `python tests/ditorch/names_table.py`.

Prints the table for the device in use; with `--chinese`, in Chinese. With file names, writes it between the marks in
those files instead.
"""

from __future__ import annotations

import sys
from pathlib import Path

from _ditorch.mapping.cuda_module import ways
from _ditorch.mapping.translation import Target
from _ditorch.mapping.unmapped import REFUSED_SUBMODULES, reason_for

__all__ = ["BEGIN", "END", "filled", "table"]

BEGIN = "<!-- names:begin (made by python tests/ditorch/names_table.py) -->"
END = "<!-- names:end -->"

_HEADINGS = {
    "english": ("Names of `torch.cuda`", "On the device"),
    "chinese": ("`torch.cuda` 的名字", "在设备上"),
}
_WORDS = {
    "english": {
        "offered": "the device module's own function or class",
        "adapted": "the device module's own, in the form of torch.cuda's",
        "derived": "made from other functions of the device",
        "type": "makes and recognises tensors or storages of the device",
        "module": "a module; its functions act on the device unless listed below",
        "kept": "as in torch",
        "refused": "raises `NotMapped`",
    },
    "chinese": {
        "offered": "设备模块自己的函数或类",
        "adapted": "设备模块自己的函数，形式与 torch.cuda 相同",
        "derived": "由设备的其他函数得出",
        "type": "创建并识别设备上的张量或存储",
        "module": "模块；除下面列出的以外，其函数都作用于设备",
        "kept": "与 torch 相同",
        "refused": "抛出 `NotMapped`",
    },
}


def table(target: Target, language: str = "english") -> str:
    """All public names of the installed torch, one row for each kind of answer."""
    words = _WORDS[language]
    found = ways(target)
    rows = [
        (sorted(name for name, way in found.items() if way == kind), text)
        for kind, text in words.items()
        if kind != "refused"
    ]
    reasons: dict[str, list[str]] = {}
    for name, way in sorted(found.items()):
        if way == "refused":
            reasons.setdefault(reason_for(name, target.device_type), []).append(name)
    for submodule, reason in REFUSED_SUBMODULES.items():
        reasons.setdefault(reason, []).append(f"{submodule}.*")
    rows += [(names, f"{words['refused']}: {reason}") for reason, names in reasons.items()]
    lines = [f"| {' | '.join(_HEADINGS[language])} |", "|---|---|"]
    lines += [f"| {' '.join(f'`{name}`' for name in names)} | {text} |" for names, text in rows if names]
    return "\n".join(lines)


def filled(document: str, content: str) -> str:
    """The document with the content between its marks."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(
            f"the document lacks the marks {BEGIN!r} and {END!r}; put them where the table belongs"
        )
    return f"{before}{BEGIN}\n\n{content}\n\n{END}{after}"


def main(arguments: list[str]) -> None:
    from _ditorch.session import of_process

    session = of_process()
    session.start(quiet=True)
    if session.mapping is None:
        sys.exit("the device in use is called cuda: nothing is mapped")
    target = session.mapping.target
    session.disable()
    files = [Path(argument) for argument in arguments if not argument.startswith("-")]
    for path in files:
        language = "chinese" if ".zh-CN." in path.name else "english"
        path.write_text(filled(path.read_text(encoding="utf-8"), table(target, language)), encoding="utf-8")
    if not files:
        print(table(target, "chinese" if "--chinese" in arguments else "english"))


if __name__ == "__main__":
    main(sys.argv[1:])
