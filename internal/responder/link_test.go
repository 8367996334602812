package responder

import (
	"testing"

	"golang.org/x/time/rate"
)

func TestAPortThatFloodsUsesUpItsOwnShareOnly(t *testing.T) {
	l := &link{shares: map[string]*rate.Limiter{}}
	answered := 0
	for range 10 * portsPerSecond {
		if l.allowed(macOfOne) {
			answered++
		}
	}
	if answered > 5*portsPerSecond {
		t.Errorf("%d questions of one port are answered at once, want a share of about %d", answered, portsPerSecond)
	}
	if !l.allowed(macOfTwo) {
		t.Error("a flood of one port takes the share of another")
	}
}
