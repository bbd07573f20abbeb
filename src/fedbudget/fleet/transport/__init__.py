"""How messages travel: MQTT over mutual TLS, and an embedded broker."""
