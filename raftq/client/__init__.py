"""The client library: asynchronous at heart, with a blocking face.

    url           where the servers are, and who asks
    connection    one connection to one node: requests out, replies back, pings
    routing       which node leads what; connections to the nodes
    retry         how long a call goes on trying, and what it says when it gives up
    outbox        the batches of one partition on their way, in order, whatever breaks
    many          lists of messages: checked, cut into batches, their receipts collected
    producer      messages into batches; receipts
    session       this client's identity in one group: numbered commands that are safe to repeat
    message       what is received; bodies, keys and headers are cut out of the batch when asked for
    receive       from many groups in fair turns
    settle        ack, nack and extend, merged into ranges
    consumer      prefetch, keep-alive, merged acks
    reader        replay without consuming
    admin         queues, dead letters, redrive: typed answers
    client        AsyncClient: all of it under one name
    blocking, blocking_client    Client: the same, over a private event-loop thread

Rules:

1. No time, chance or network but those of `ports.Outside`: the library runs in the simulator. The
   one thread is `blocking`'s.
2. A call is repeated when its error says that nothing happened, or when repeating it is safe by
   its number; never otherwise. What is not known is said: `error.outcome == "unknown"`.
3. No task, future or object per message on the fast way: `send_many`, `submit` and `receive` work
   by batch.
"""
