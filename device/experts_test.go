package device_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/device"
)

// A call computes as many rows as the calls that divide its blocks between them, and the calls for all blocks of all
// experts have each choice once.
func TestBalancedRowsAddUp(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		number := func(name string, least, most int) int { return rapid.IntRange(least, most).Draw(rt, name) }
		experts := number("experts", 1, 9)
		routing := device.Routing{Rows: number("rows", 0, 40), TopK: number("top k", 1, experts), Experts: experts}
		b := device.Blocks{Routing: routing, Experts: experts, Rows: number("rows of a block", 1, 12)}
		b.Count = b.Most()
		if got, want := b.Balanced(), int64(routing.Rows*routing.TopK); got != want {
			rt.Errorf("all calls have %d rows, want %d", got, want)
		}
		b.First = number("first", 0, experts-1)
		b.Experts = number("of those", 1, experts-b.First)
		b.From, b.Count = number("from", 0, 20), number("count", 0, 20)
		whole, sum := b.Balanced(), int64(0)
		for range b.Count {
			one := b
			one.Count = 1
			rows := one.Balanced()
			if rows > int64(b.Rows) {
				rt.Errorf("a block of %d rows has %d", b.Rows, rows)
			}
			sum, b.From = sum+rows, b.From+1
		}
		if whole != sum {
			rt.Errorf("a call has %d rows, and its blocks have %d", whole, sum)
		}
	})
}
