"""Tables, figures and pages made from what runs left behind, never from live runs."""
