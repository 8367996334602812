package lifecycle

import (
	"slices"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestAConditionIsChangedWhileAMemberRunsOrIsPaused(t *testing.T) {
	for name, c := range map[string]struct {
		host    HostState
		desired DesiredMember
		want    bool
	}{
		"it runs":                   {HostRunning, DesiredMember{ChangeCondition: true}, true},
		"it has the condition":      {HostRunning, DesiredMember{}, false},
		"it is paused":              {HostPaused, DesiredMember{Paused: true, ChangeCondition: true}, true},
		"it moves":                  {HostRunning, DesiredMember{Moving: true, ChangeCondition: true}, false},
		"its volumes change, first": {HostRunning, DesiredMember{ChangeVolumes: true, ChangeCondition: true}, false},
		"it is released":            {HostRunning, DesiredMember{Release: true, ChangeCondition: true}, false},
		"it was not started yet":    {HostAbsent, DesiredMember{ChangeCondition: true}, false},
	} {
		ops := PlanMember(MemberInput{Desired: &c.desired, Current: true, Host: c.host, Ready: true})
		if got := slices.Contains(ops, MemberOperation(ChangeCondition{})); got != c.want {
			t.Errorf("%s: the plan is %v", name, ops)
		}
	}
}

func TestOnlyNetworksOfContainersHaveConditions(t *testing.T) {
	for stack, refused := range map[api.Stack]bool{api.StackContainer: false, api.StackMetal: true, api.StackVM: true} {
		spec := api.ClusterSpec{Groups: []api.Group{{Name: "a", Stack: api.StackContainer}, {Name: "b", Stack: stack}}}
		if why := ConditionRefused(&spec); (why != "") != refused {
			t.Errorf("stack %s: %q", stack, why)
		}
	}
}
