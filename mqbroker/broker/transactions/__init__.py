"""Transactions: half messages, which consumers get only after their producer has committed them, and transaction
checks.

Source of formats and rules: org.apache.rocketmq.broker.transaction of 4.9.7.
"""
