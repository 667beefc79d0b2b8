"""Transactions: half messages, which no consumer gets until their producer commits them, and the checks of the others.

Source of formats and rules: org.apache.rocketmq.broker.transaction of 4.9.7.
"""
