"""The dependency graph of effects as a tree for people, as Mermaid and as Graphviz."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import effectstore
from effectstore.cli.output import cut, plain_text, width

_STATE_MARKS = {"live": "~", "committed": "+", "doomed": "x", "void": "-"}
_DOT_COLOURS = {"live": "khaki", "committed": "palegreen", "doomed": "lightcoral", "void": "lightgrey"}


@dataclass(frozen=True, slots=True)
class Node:
    """One effect, and the shown effects that it rests on, each with the keys through which it does."""

    id: int
    branch: str
    tool: str
    state: str
    compensated: bool
    rests_on: tuple[tuple[int, tuple[str, ...]], ...]

    @property
    def text(self) -> str:
        """The effect in a few words."""
        undone = ", undone" if self.compensated else ""
        return f"{self.id} {self.tool} ({self.branch}, {self.state}{undone})"


@dataclass(frozen=True, slots=True)
class Graph:
    """Effects in order of their ids, with the dependencies among them."""

    nodes: tuple[Node, ...]

    @classmethod
    def of(cls, effects: Sequence[effectstore.Effect]) -> "Graph":
        """The graph of these effects; dependencies on effects that are not among them are left out."""
        written = {effect.id: frozenset(effect.writes) for effect in effects}
        nodes = []
        for effect in effects:
            reads = frozenset(effect.reads)
            edges = tuple(
                (target, tuple(sorted(str(key) for key in reads & written[target])))
                for target in sorted(effect.rests_on)
                if target in written
            )
            nodes.append(Node(effect.id, effect.branch, effect.tool, effect.state, bool(effect.compensated), edges))
        return cls(tuple(nodes))

    def to_dict(self) -> dict[str, Any]:
        """Nodes and edges as plain values."""
        return {
            "nodes": [
                {"id": n.id, "branch": n.branch, "tool": n.tool, "state": n.state, "compensated": n.compensated}
                for n in self.nodes
            ],
            "edges": [
                {"from": n.id, "rests_on": target, "keys": list(keys)}
                for n in self.nodes
                for target, keys in n.rests_on
            ],
        }

    def tree(self) -> str:
        """Each effect below the newest effect that it rests on; the others that it rests on are named beside it."""
        if not self.nodes:
            return "no effects"
        parents = {node.id: self._parent(node) for node in self.nodes}
        children: dict[int | None, list[Node]] = {}
        for node in self.nodes:
            children.setdefault(parents[node.id], []).append(node)
        lines = ["~ live  + committed  x doomed  - void", ""]
        # A stack and not recursion: chains of effects are as long as agents make them.
        pending = [(node, 0) for node in reversed(children.get(None, []))]
        while pending:
            node, depth = pending.pop()
            others = [str(target) for target, _ in node.rests_on if target != parents[node.id]]
            also = f"  also on {', '.join(others)}" if others else ""
            # Beyond some depth the indent would leave no room; the depth is then a number.
            indent = "  " * depth if depth <= 12 else f"{'  ' * 12}[{depth}] "
            lines.append(cut(plain_text(f"{indent}{_STATE_MARKS.get(node.state, '?')} {node.text}{also}"), width()))
            pending.extend((child, depth + 1) for child in reversed(children.get(node.id, [])))
        return "\n".join(lines)

    def _parent(self, node: Node) -> int | None:
        """A late observation can point to a newer effect; only older ones can be parents, so that no ring closes."""
        return max((target for target, _ in node.rests_on if target < node.id), default=None)

    def mermaid(self) -> str:
        """A Mermaid flowchart; arrows go from an effect to what it rests on."""
        lines = ["flowchart BT"]
        for branch, nodes in self._by_branch().items():
            lines.append(f'  subgraph b{nodes[0].id}["{_mermaid(branch)}"]')
            lines.extend(f'    e{node.id}["{node.id} {_mermaid(node.tool)}"]:::{node.state}' for node in nodes)
            lines.append("  end")
        for node, target, keys in self._edges():
            label = f'|"{_mermaid(", ".join(keys))}"|' if keys else ""
            lines.append(f"  e{node.id} -->{label} e{target}")
        lines.append("  classDef live fill:#fff3b0,stroke:#8a6d00,color:#000")
        lines.append("  classDef committed fill:#b7e4c7,stroke:#1b4332,color:#000")
        lines.append("  classDef doomed fill:#ffb3b3,stroke:#7f1d1d,color:#000")
        lines.append("  classDef void fill:#e5e5e5,stroke:#525252,color:#000")
        return "\n".join(lines)

    def dot(self) -> str:
        """A Graphviz digraph; arrows go from an effect to what it rests on."""
        lines = ["digraph effects {", "  rankdir=BT;", "  node [shape=box, style=filled];"]
        for branch, nodes in self._by_branch().items():
            lines.append(f'  subgraph "cluster_{nodes[0].id}" {{')
            lines.append(f'    label="{_dot(branch)}";')
            for node in nodes:
                colour = _DOT_COLOURS.get(node.state, "white")
                lines.append(f'    e{node.id} [label="{node.id} {_dot(node.tool)}", fillcolor={colour}];')
            lines.append("  }")
        for node, target, keys in self._edges():
            label = f' [label="{_dot(", ".join(keys))}"]' if keys else ""
            lines.append(f"  e{node.id} -> e{target}{label};")
        lines.append("}")
        return "\n".join(lines)

    def _by_branch(self) -> dict[str, list[Node]]:
        groups: dict[str, list[Node]] = {}
        for node in self.nodes:
            groups.setdefault(node.branch, []).append(node)
        return groups

    def _edges(self) -> Iterable[tuple[Node, int, tuple[str, ...]]]:
        return ((node, target, keys) for node in self.nodes for target, keys in node.rests_on)


def _mermaid(text: str) -> str:
    """Text inside a quoted Mermaid label: everything that could end or mark up the label becomes an entity code."""
    return "".join(c if c.isalnum() or c in " _-./:,()" else f"#{ord(c)};" for c in plain_text(text))


def _dot(text: str) -> str:
    """Text inside a quoted Graphviz string."""
    return plain_text(text).replace("\\", "\\\\").replace('"', '\\"')
