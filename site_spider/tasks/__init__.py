"""Tasks: the seeds that share one `task_id`, and when a task has ended.

It owns the control log of tasks and the rule of the end. It never polls seeds.
"""
