"""Tasks: which rules the seeds of one `task_id` go by, and which of them may begin.

It owns the records of the task topic, from a person's words to the phase of a task, and what is done with
seeds of a task that is paused, cancelled or over its budget. It never downloads, and never decides about
seeds whose task was not declared.
"""
