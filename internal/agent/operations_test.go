package agent

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// planned is an agent with one running member, which it has just been told of.
func planned(t *testing.T) (*Agent, *memberState, *handClock) {
	t.Helper()
	a, clock, _ := asleep(t)
	if err := a.hear(t.Context(), wanted(1, nil), a.hearing.begin()); err != nil {
		t.Fatal(err)
	}
	m := a.members["u1.a.1"]
	m.state = driver.StateRunning
	return a, m, clock
}

func TestTheAgentKnowsEachOperationOnAMember(t *testing.T) {
	for _, op := range lifecycle.MemberOperations() {
		a, m, _ := planned(t)
		if err := a.carryOut(t.Context(), m, op); err != nil {
			t.Error(err)
		}
		if m.busy {
			(<-a.events)()
		}
	}
}

func TestAMemberOperationThatNobodyKnowsEndsThePlanAndIsReported(t *testing.T) {
	a, m, _ := planned(t)
	type strange struct{ lifecycle.MemberOperation }
	var unhandled *lifecycle.UnhandledOperation
	if err := a.carryOut(t.Context(), m, strange{}); !errors.As(err, &unhandled) {
		t.Errorf("an unknown operation: %v; want an error that names it", err)
	}
	a.follow(t.Context(), m, []lifecycle.MemberOperation{strange{}, lifecycle.Report{Phase: api.MemberReady, Message: "carried out after it"}})
	if !strings.Contains(m.message, "does not handle operation") {
		t.Errorf("the member says %q", m.message)
	}
}

func TestOfAllOperationsOnlyWordsAreCarriedOutWithoutTheLeader(t *testing.T) {
	a, m, clock := planned(t)
	if all := a.held(m, lifecycle.MemberOperations()); len(all) != len(lifecycle.MemberOperations()) {
		t.Fatalf("while the leader is heard, only %v is carried out", all)
	}
	clock.pass(time.Minute)
	type strange struct{ lifecycle.MemberOperation }
	for _, op := range a.held(m, append(lifecycle.MemberOperations(), strange{})) {
		switch op.(type) {
		case lifecycle.Report, lifecycle.ReportClean, lifecycle.WakeAt, lifecycle.Reject:
		default:
			t.Errorf("%T is carried out, though the leader may wish otherwise by now", op)
		}
	}
}
