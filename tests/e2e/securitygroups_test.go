package e2e

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

func TestSecurityGroupsOpenWhatTheirRulesAllowOnRunningMembers(t *testing.T) {
	program(t, ordinary)
	nothingLeft(t)
	s := startSite(t, 2, "--nodes", "2", "--node-cores", "3")
	clean := s.lookAtNodes()
	s.must("network", "create", "lab")
	s.must("security-group", "create", "ops")
	s.must("security-group", "create", "web")
	web := s.cluster("web", 4, "--network", "project/lab", "--security-group", "project/lab=web")
	ops := s.cluster("ops", 1, "--network", "project/lab", "--security-group", "project/lab=ops")
	if m := web.Status.Members; m[0].Node == m[3].Node || ops.Status.Members[0].Node != m[3].Node {
		t.Fatalf("cluster web has to be on two nodes, and ops on one of them: %+v, %+v", m, ops.Status.Members)
	}
	s.wantReach(reach{ops, web, nil}, reach{web, ops, nil}) // a port with a group takes nothing unless a rule allows it

	s.must("security-group", "set", "web", "--add", "in tcp 22 from group ops")
	s.wantReach(reach{ops, web, []string{"TCP"}}, reach{web, ops, nil}, reach{web, web, nil})
	s.wantGroupRefusals()
	s.must("security-group", "set", "web", "--rule", "in icmp 8 from 0.0.0.0/0")
	s.wantReach(reach{ops, web, []string{"ping"}})

	s.must("cluster", "delete", "web", "ops", "--yes")
	s.must("security-group", "delete", "web", "ops")
	s.must("network", "delete", "project/lab")
	s.wantNothingOf(web.UID, clean)
	s.wantNothingOf(ops.UID, clean)
}

// reach is by what members of a cluster reach the members of another, or each other, on the project's network.
type reach struct {
	from, to api.Cluster
	by       []string
}

// wantReach waits until members reach each other as wanted, and by nothing else.
func (s *site) wantReach(all ...reach) {
	s.t.Helper()
	wrong := ""
	defer func() {
		if s.t.Failed() {
			s.t.Log(wrong)
		}
	}()
	s.eventually(20*time.Second, "members to reach what rules allow", func() bool {
		var questions []*question
		for _, r := range all {
			for _, m := range r.from.Status.Members {
				for _, other := range r.to.Status.Members {
					if address := other.Networks[0].Address; address != m.Networks[0].Address {
						questions = append(questions, &question{pid: s.processAt(r.from, m), address: address, who: m.Name + " " + other.Name, want: r.by})
					}
				}
			}
		}
		var asked sync.WaitGroup
		for _, q := range questions {
			asked.Go(q.ask)
		}
		asked.Wait()
		i := slices.IndexFunc(questions, func(q *question) bool { return !slices.Equal(q.answer, q.want) || q.err != nil })
		if i >= 0 {
			wrong = fmt.Sprintf("%s: reached by %v, want %v (%v)", questions[i].who, questions[i].answer, questions[i].want, questions[i].err)
		}
		return i < 0
	})
}

// wantGroupRefusals checks that bad requests about security groups are refused with the reason, and change nothing.
func (s *site) wantGroupRefusals() {
	s.t.Helper()
	var before, after []api.SecurityGroupStatus
	s.mustJSON(&before, "security-group", "list")
	for _, tt := range []struct {
		code int
		want string
		args []string
	}{
		{exitConflict, "1 cluster (web)", []string{"security-group", "delete", "web"}},
		{exitNotFound, `"none" does not exist`, []string{"security-group", "show", "none"}},
		{exitConflict, "already exists", []string{"security-group", "create", "web"}},
		{exitUsage, "(in tcp 22 from group ops) covers it", []string{"security-group", "set", "web", "--add", "in tcp 22 from group ops"}},
		{exitUsage, `did you mean "ops"?`, []string{"security-group", "set", "web", "--add", "in any from group op"}},
		{exitUsage, `did you mean "web"?`, []string{"cluster", "create", "c9", "--network", "project/lab", "--security-group", "project/lab=wep"}},
		{exitUsage, "--network project/labs", []string{"cluster", "create", "c9", "--network", "project/lab", "--security-group", "project/labs=web"}},
	} {
		if a := s.cli(tt.args...); a.code != tt.code || !strings.Contains(a.err, tt.want) {
			s.t.Errorf("%v: exit code %d, %q; want %d with %q", tt.args, a.code, a.err, tt.code, tt.want)
		}
	}
	if s.mustJSON(&after, "security-group", "list"); len(after) != 2 || !slices.Equal(after[1].Rules, before[1].Rules) || len(after[1].Ports) != 4 {
		s.t.Errorf("refusals changed the security groups from %+v to %+v", before, after)
	}
}
