"""The tables of docs/versions.md: what each older version does with files of each feature."""

import re

from sides import ROOT

PAGE = ROOT / "docs/versions.md"
TABLES = ("new", "old")  # which version made the files


def table(page, maker):
    """Return the columns of a table: heading -> {title of a feature: cell}."""
    lines = re.search(rf"<!-- made by {maker} -->\n(.*?)\n?<!-- end -->", page, re.DOTALL)[1]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines.splitlines()]
    if not rows:
        return {}
    heading, _, *rest = rows
    return {heading[n]: {row[0]: row[n] for row in rest if row[n]} for n in range(2, len(heading))}


def text(features, columns):
    """Return a table as Markdown."""
    heading = ["files", "since", *columns]
    rows = [heading, ["---"] * len(heading)]
    for feature in features:
        cells = [column.get(feature.title, "") for column in columns.values()]
        rows.append([feature.title, feature.since, *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def compare(label, cells, features, write):
    """Put the cells into the column of a version, or return what the page has otherwise."""
    page, differences = PAGE.read_text(), []
    for maker in TABLES:
        columns = table(page, maker)
        if write:
            columns.setdefault(label, {}).update(cells[maker])
            page = re.sub(
                rf"(<!-- made by {maker} -->\n).*?(<!-- end -->)",
                lambda found: f"{found[1]}{text(features, columns)}\n{found[2]}",  # noqa: B023
                page,
                flags=re.DOTALL,
            )
        elif label in columns:
            differences += [
                f"{PAGE.name} has, of {title} made by {maker}: {columns[label].get(title)}"
                for title, cell in cells[maker].items()
                if columns[label].get(title) != cell
            ]
    if write:
        PAGE.write_text(page)
    return differences
