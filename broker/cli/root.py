"""The commands of `kmr broker`."""

from cyclopts import App

from broker.cli import acl, group, log, topic, txn, user
from broker.cli.console import console
from broker.cli.consume import consume
from broker.cli.doctor import doctor
from broker.cli.features import features
from broker.cli.produce import produce
from broker.cli.serve import serve

__all__ = ["app"]

app = App(
    name="broker",
    help="Run the bundled broker, and work with any Kafka broker: topics, records, groups, transactions.",
)
app.command(serve)
app.command(topic.app)
app.command(group.app)
app.command(txn.app)
app.command(produce)
app.command(consume)
app.command(console)
app.command(log.app)
app.command(doctor)
app.command(features)
app.command(user.app)
app.command(acl.app)
