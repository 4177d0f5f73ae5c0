"""Conditions on earlier rows, evaluated: an interpreter of `program`, and the registers it reads.

A *node* is a row that a partial match has taken: the row, its variable, the node before it, and the
registers of all rows up to it. Numbers that leave their range are reported, not wrapped.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from millrace.arrays import Float64Array, Int64Array
from millrace.jit import part
from millrace.operators.pattern import program as p

Array: TypeAlias = Int64Array

ROW, VARIABLE, PARENT, REGISTERS = range(4)
"""The columns of a node."""


@part
def compared(x: float, y: float) -> int:
    """As Spark orders doubles: NaN equals itself and is the largest."""
    if np.isnan(x):
        return 0 if np.isnan(y) else 1
    if np.isnan(y):
        return -1
    return -1 if x < y else (1 if x > y else 0)


@part
def holds(
    programs: tuple[Array, Array, Float64Array, Array],
    values: tuple[Array, Float64Array, Array],
    variable: int,
    row: int,
    node: int,
    nodes: Array,
    sums: Float64Array,
    stack: tuple[Array, Float64Array, Array],
) -> int:
    """1 if a variable's condition holds for a row behind a node, else 0; -1 if a number is lost."""
    code, bounds, constants, texts = programs
    wholes, doubles, valid = values
    ints, floats, known = stack
    top = -1
    for at in range(bounds[variable], bounds[variable + 1]):
        op = code[at, 0]
        a = code[at, 1]
        b = code[at, 2]
        c = code[at, 3]
        if op <= p.CONSTANT_NULL:
            top += 1
            known[top] = 1
            if op == p.CURRENT_INT:
                ints[top] = wholes[a, row]
                known[top] = valid[b, row]
            elif op == p.CURRENT_FLOAT:
                floats[top] = doubles[a, row]
                known[top] = valid[b, row]
            elif op == p.EARLIER_INT or op == p.EARLIER_FLOAT:
                found = -1 if node < 0 else nodes[node, REGISTERS + a]
                if found < 0:
                    known[top] = 0
                else:
                    known[top] = valid[c, found]
                    if op == p.EARLIER_INT:
                        ints[top] = wholes[b, found]
                    else:
                        floats[top] = doubles[b, found]
            elif op == p.WALK_INT or op == p.WALK_FLOAT:
                left = c
                at_node = node
                while at_node >= 0:
                    if a == p.ANY or nodes[at_node, VARIABLE] == a:
                        if left == 0:
                            break
                        left -= 1
                    at_node = nodes[at_node, PARENT]
                if at_node < 0:
                    known[top] = 0
                else:
                    found = nodes[at_node, ROW]
                    known[top] = valid[b >> 32, found]
                    if op == p.WALK_INT:
                        ints[top] = wholes[b & 0xFFFFFFFF, found]
                    else:
                        floats[top] = doubles[b & 0xFFFFFFFF, found]
            elif op == p.COUNT:
                ints[top] = 0 if node < 0 else nodes[node, REGISTERS + a]
            elif op == p.SUM_INT or op == p.SUM_FLOAT:
                if node < 0 or nodes[node, REGISTERS + b] == 0:
                    known[top] = 0
                elif op == p.SUM_INT:
                    ints[top] = nodes[node, REGISTERS + a]
                else:
                    floats[top] = sums[node, a]
            elif op == p.CONSTANT_INT:
                ints[top] = a
            elif op == p.CONSTANT_FLOAT:
                floats[top] = constants[a]
            elif op == p.CONSTANT_TEXT:
                ints[top] = texts[a]
            else:
                known[top] = 0
            continue
        if op < p.AND:
            if op == p.TO_FLOAT:
                floats[top] = float(ints[top])
            elif op == p.NOT:
                ints[top] = 1 - ints[top]
            elif op == p.IS_NULL:
                ints[top] = 1 - known[top]
                known[top] = 1
            elif op == p.IS_NOT_NULL:
                ints[top] = known[top]
                known[top] = 1
            elif op == p.NEGATIVE_FLOAT:
                floats[top] = -floats[top]
            elif op == p.ABS_FLOAT:
                floats[top] = abs(floats[top])
            else:
                if known[top] and ints[top] == np.iinfo(np.int64).min:
                    return -1
                if op == p.NEGATIVE_INT or ints[top] < 0:
                    ints[top] = -ints[top]
            continue
        other = top
        top -= 1
        if op == p.AND or op == p.OR:
            # One side that decides is enough, whatever the other is.
            decides = 0 if op == p.AND else 1
            first = known[top] == 1 and ints[top] == decides
            second = known[other] == 1 and ints[other] == decides
            if first or second:
                ints[top] = decides
                known[top] = 1
            else:
                ints[top] = 1 - decides
                known[top] &= known[other]
            continue
        if op == p.SAME_INT or op == p.SAME_FLOAT:
            if known[top] and known[other]:
                if op == p.SAME_INT:
                    ints[top] = 1 if ints[top] == ints[other] else 0
                else:
                    ints[top] = 1 if compared(floats[top], floats[other]) == 0 else 0
            else:
                ints[top] = 1 if known[top] == known[other] else 0
            known[top] = 1
            continue
        if op == p.EITHER:
            if not known[top]:
                ints[top] = ints[other]
                floats[top] = floats[other]
                known[top] = known[other]
            continue
        known[top] &= known[other]
        if not known[top]:
            continue
        if op == p.ADD_FLOAT:
            floats[top] += floats[other]
        elif op == p.SUBTRACT_FLOAT:
            floats[top] -= floats[other]
        elif op == p.MULTIPLY_FLOAT:
            floats[top] *= floats[other]
        elif op == p.DIVIDE:
            if floats[other] == 0:
                known[top] = 0
            else:
                floats[top] /= floats[other]
        elif op <= p.MULTIPLY_INT:
            x = ints[top]
            y = ints[other]
            if op == p.ADD_INT:
                z = x + y
                if ((x ^ z) & (y ^ z)) < 0:
                    return -1
            elif op == p.SUBTRACT_INT:
                z = x - y
                if ((x ^ y) & (x ^ z)) < 0:
                    return -1
            else:
                z = x * y
                if abs(float(x) * float(y)) > 9.2e18:
                    return -1
            ints[top] = z
        else:
            if op >= p.EQUAL_FLOAT:
                order = compared(floats[top], floats[other])
                op -= p.EQUAL_FLOAT - p.EQUAL_INT
            else:
                order = -1 if ints[top] < ints[other] else (1 if ints[top] > ints[other] else 0)
            if op == p.EQUAL_INT:
                result = order == 0
            elif op == p.UNEQUAL_INT:
                result = order != 0
            elif op == p.LESS_INT:
                result = order < 0
            elif op == p.AT_MOST_INT:
                result = order <= 0
            elif op == p.MORE_INT:
                result = order > 0
            else:
                result = order >= 0
            ints[top] = 1 if result else 0
    return 1 if known[0] == 1 and ints[0] == 1 else 0


@part
def take(
    nodes: Array,
    sums: Float64Array,
    node: int,
    row: int,
    variable: int,
    parent: int,
    registers: Array,
    values: tuple[Array, Float64Array, Array],
) -> bool:
    """Fill in a node: a row that is taken behind a parent. False if a sum is too large."""
    wholes, doubles, valid = values
    nodes[node, ROW] = row
    nodes[node, VARIABLE] = variable
    nodes[node, PARENT] = parent
    for r in range(len(registers)):
        keep = registers[r, 0]
        at = REGISTERS + r
        if parent >= 0:
            nodes[node, at] = nodes[parent, at]
            sums[node, r] = sums[parent, r]
        else:
            nodes[node, at] = 0 if keep >= p.KEEP_COUNT else -1
            sums[node, r] = 0.0
        of = registers[r, 1]
        if of != p.ANY and of != variable:
            continue
        number = registers[r, 2]
        place = registers[r, 3]
        if keep == p.KEEP_LAST or (keep == p.KEEP_FIRST and nodes[node, at] < 0):
            nodes[node, at] = row
        elif keep == p.KEEP_FIRST or (number >= 0 and not valid[number, row]):
            continue
        elif keep == p.KEEP_COUNT:
            nodes[node, at] += 1
        elif keep == p.KEEP_SUM:
            if registers[r, 4]:
                sums[node, r] += doubles[place, row]
            else:
                x = nodes[node, at]
                y = wholes[place, row]
                z = x + y
                if ((x ^ z) & (y ^ z)) < 0:
                    return False
                nodes[node, at] = z
        else:
            kept = nodes[node, at]
            if kept < 0:
                nodes[node, at] = row
                continue
            if registers[r, 4]:
                order = compared(doubles[place, row], doubles[place, kept])
            else:
                x = wholes[place, row]
                y = wholes[place, kept]
                order = -1 if x < y else (1 if x > y else 0)
            if (keep == p.KEEP_MIN and order < 0) or (keep == p.KEEP_MAX and order > 0):
                nodes[node, at] = row
    return True
