"""Linear Road: cars on expressways report where they are, and pay tolls that depend on the traffic.

`generator` makes the traffic, `program` is the benchmark on Millrace, `oracle` computes the same
answers as a plain program written from the specification, `answers` compares the two, and `playing`
shows the traffic to a query at its own pace.
"""
