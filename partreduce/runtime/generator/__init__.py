"""Run the group service (Prague's Group Generator): a model-checked state machine behind a socket."""
