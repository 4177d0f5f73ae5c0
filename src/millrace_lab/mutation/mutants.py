"""The mutants of a module: every place where one small change of its source makes a fault.

Texts are left alone (docstrings, error messages, log lines, `__repr__`), and so are type hints,
decorators and imports: a change there is no fault that a test should find.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
from dataclasses import dataclass, replace

COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
ARITHMETIC = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"),
    ast.Div: ("/", "*"),
    ast.Mod: ("%", "*"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}
TEXTUAL = {"__repr__", "__str__"}
LOGGERS = {"_log", "log", "logger", "_logger", "warnings"}


@dataclass(frozen=True)
class Mutant:
    """One change: the characters from `start` to `end` of the source become `replacement`."""

    module: str
    """Path from the package's folder, such as log/journal.py."""
    function: str
    """Qualified name of the function with the fault; empty at the top of a module or class."""
    line: int
    kind: str
    start: int
    end: int
    replacement: str

    def applied(self, source: str) -> str:
        return source[: self.start] + self.replacement + source[self.end :]

    def without_fault(self, source: str) -> Mutant:
        """The same place, unchanged."""
        return replace(self, kind="none", replacement=source[self.start : self.end])

    def changed(self, source: str) -> tuple[str, str]:
        """The lines with the fault, before and after it, each as one line of text."""
        mutated = self.applied(source)
        first = source.rfind("\n", 0, self.start) + 1
        shift = len(mutated) - len(source)
        last = source.find("\n", self.end)
        last = len(source) if last < 0 else last
        return " ".join(source[first:last].split()), " ".join(mutated[first : last + shift].split())

    def diff(self, source: str) -> str:
        lines = difflib.unified_diff(
            source.splitlines(),
            self.applied(source).splitlines(),
            self.module,
            self.module,
            "",
            "",
            1,
        )
        return "\n".join(line.rstrip("\n") for line in lines)

    def id(self, source: str) -> str:
        """The same as long as the module's text is."""
        text = f"{self.module}:{self.start}:{self.end}:{self.replacement}:{source}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def mutants(module: str, source: str) -> list[Mutant]:
    """All of them, in the order of the source; a few may not compile."""
    finder = _Finder(module, source)
    finder.visit(ast.parse(source))
    return sorted(set(finder.found), key=lambda m: (m.start, m.end, m.replacement))


def compiles(mutant: Mutant, source: str) -> bool:
    try:
        compile(mutant.applied(source), mutant.module, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


class _Finder(ast.NodeVisitor):
    def __init__(self, module: str, source: str) -> None:
        self.found: list[Mutant] = []
        self._module, self._source = module, source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._texts = source.splitlines(keepends=True)
        self._names: list[str] = []
        self._in_function = False

    def _at(self, line: int, column: int) -> int:
        # Columns of the syntax tree count bytes of UTF-8.
        before = self._texts[line - 1].encode()[:column].decode()
        return self._lines[line - 1] + len(before)

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self._at(node.lineno, node.col_offset)

    def _end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._at(node.end_lineno, node.end_col_offset)

    def _add(self, kind: str, line: int, start: int, end: int, replacement: str) -> None:
        function = ".".join(self._names) if self._in_function else ""
        self.found.append(Mutant(self._module, function, line, kind, start, end, replacement))

    def _swap(self, kind: str, left: ast.expr, right: ast.expr, old: str, new: str) -> None:
        """Replace an operator between two operands."""
        start, end = self._end(left), self._start(right)
        at = self._source.find(old, start, end)
        if at >= 0:
            self._add(kind, left.lineno, at, at + len(old), new)

    def _replace(self, kind: str, node: ast.expr | ast.stmt, replacement: str) -> None:
        self._add(kind, node.lineno, self._start(node), self._end(node), replacement)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in TEXTUAL:
            return
        outer = self._in_function
        self._names += ["<locals>", node.name] if outer else [node.name]
        self._in_function = True
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if default is not None:
                self.visit(default)
        self._body(node.body)
        del self._names[-2 if outer else -1 :]
        self._in_function = outer

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._names.append(node.name)
        self._body(node.body)
        self._names.pop()

    def _body(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self.visit(statement)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        target = node.targets[0]
        if isinstance(target, ast.Name) and (
            target.id == "__all__" or (not self._in_function and target.id[:1].isupper())
        ):
            # A constant or an alias of a type: nothing that a single test is about.
            return
        if self._in_function and isinstance(target, ast.Attribute | ast.Subscript):
            self._replace("statement removed", node, "pass")
        self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._replace("statement removed", node, "pass")
        old, new = ARITHMETIC.get(type(node.op), ("", ""))
        if old and not _is_text(node.value):
            self._swap("arithmetic", node.target, node.value, old, new)
        self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return
        if isinstance(node.value, ast.Call):
            if _is_log(node.value):
                return
            self._replace("statement removed", node, "pass")
        self.visit(node.value)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is None or (
            isinstance(node.value, ast.Constant) and node.value.value is None
        ):
            return
        self._replace("return None", node, "return None")
        self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        if node.exc is not None:
            self._replace("raise removed", node, "pass")

    def visit_Assert(self, node: ast.Assert) -> None:
        """For the type checker, or a claim: it finds faults, and is none."""

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        if isinstance(node.test, ast.Name | ast.Attribute | ast.Call):
            segment = self._source[self._start(node.test) : self._end(node.test)]
            self._replace("condition negated", node.test, f"not {segment}")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            self._swap("comparison", left, right, *COMPARISONS[type(operator)])
            left = right
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        old, new = ARITHMETIC.get(type(node.op), ("", ""))
        if old and not _is_text(node.left) and not _is_text(node.right):
            self._swap("arithmetic", node.left, node.right, old, new)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._swap("and/or", left, right, old, new)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            start = self._start(node)
            self._add("not dropped", node.lineno, start, start + len("not "), "")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._replace("constant", node, str(not node.value))
        elif isinstance(node.value, int):
            self._replace("boundary", node, str(node.value + 1))
            if node.value > 0:
                self._replace("boundary", node, str(node.value - 1))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Text."""

    def visit_Call(self, node: ast.Call) -> None:
        if not _is_log(node):
            self.generic_visit(node)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def _is_log(node: ast.Call) -> bool:
    function = node.func
    return (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id in LOGGERS
    )
