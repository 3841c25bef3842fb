"""Facts of a store for people and monitors: `winkfs report` and `winkfs metrics`.

facts    gathers the facts of any kind of store: `docs/report.md` has their schema
page     makes one HTML page of them
metrics  gathers figures of mounts and stores as Prometheus text
"""
