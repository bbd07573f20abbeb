"""Tables, figures and pages made from recorded runs, never from live ones."""
