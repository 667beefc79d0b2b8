"""Transactions: half messages that nobody sees until their producer commits them, and the question to it where it
does not say.

A half message waits in queue 0 of RMQ_SYS_TRANS_HALF_TOPIC. An entry of RMQ_SYS_TRANS_OP_HALF_TOPIC, whose body is its
queue offset, settles it: it was committed, rolled back, put back under another offset, or given up. Source of formats
and rules: org.apache.rocketmq.broker.transaction of 4.9.7.
"""
