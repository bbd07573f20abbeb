"""The ServerApp: a coordinator, as `fedbudget server` is one."""

from flwr.serverapp import ServerApp

from fedbudget.fleet.coordinator.flower import serve_app

app = ServerApp()
app.main()(serve_app)
