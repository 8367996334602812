package cli

import (
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

func TestAConditionIsWrittenAsItsFlagsAre(t *testing.T) {
	var c api.NetworkCondition
	for text, ok := range map[string]bool{"0.1": true, "0.1%": true, "100": true, "101": false, "-1": false, "NaN": false, "much": false, "": false} {
		if err := (percentage{&c.Loss}).Set(text); (err == nil) != ok {
			t.Errorf("percentage %q: %v", text, err)
		}
	}
	full := api.NetworkConditionStatus{
		NetworkCondition: api.NetworkCondition{Delay: api.Duration(25 * time.Millisecond), Jitter: api.Duration(time.Millisecond), Loss: 0.1, Duplicate: 1, Corrupt: 2, Reorder: 3.5, Rate: 100e6, Seed: 7},
		State:            api.ConditionSetting, Waiting: 3, Message: "c1-0: no TUN devices",
	}
	const want = "delay 25ms, jitter 1ms, loss 0.1%, duplicate 1%, corrupt 2%, reorder 3.5%, rate 100Mbit, seed 7 (setting)"
	if got := conditionLine(&full); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := conditionWaits(&full); got != "c1-0: no TUN devices, and 2 more" {
		t.Errorf("it waits for %q", got)
	}
	if got := conditionLine(&api.NetworkConditionStatus{State: api.ConditionClearing, Waiting: 1}); got != "clearing" {
		t.Errorf("while it is cleared: %q", got)
	}
	if got := conditionLine(nil); got != "" {
		t.Errorf("without one: %q", got)
	}
}
