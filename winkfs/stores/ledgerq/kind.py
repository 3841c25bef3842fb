"""Registers the queue."""

from winkfs.stores.kinds import Kind, folder_with, register

register(
    Kind(
        "queue",
        folder_with("winkfs.stores.ledgerq.queue:is_queue"),
        {
            "open": "winkfs.stores.ledgerq.records:QueueRecords",
            "verify": "winkfs.stores.ledgerq.records:verify",
            "report": "winkfs.report.records:queue_facts",
            "metrics": "winkfs.report.metrics:of_queue",
        },
    )
)
