"""Tasks: what was declared of the seeds with one `task_id`, how they are controlled, and when they have ended.

It owns the records of the task topic and of the control log of tasks, and whoever reads and writes them. It never
decides when a seed begins or is complete: it answers those that do, and hears of seeds as a listener.
"""
