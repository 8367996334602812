package agent

import (
	"fmt"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/drivertest"
	"github.com/nearmetal/nearmetal/internal/driver/fake"
)

func TestAJobWhoseClusterRanOutOfMemorySaysSo(t *testing.T) {
	const said = "ended by signal SIGKILL"
	short := func(member int) string {
		return fmt.Sprintf("; c-%d ran out of memory: its limit is 256MiB, and the kernel killed some of its processes (1)", member)
	}
	run, fail := api.JobRunning, api.JobFailed
	for name, test := range map[string]struct {
		before, short []int // members that run out of memory before the job is heard of, and while it runs
		phases        []api.JobPhase
		want          string
	}{
		"the member that runs it":                  {nil, []int{0}, []api.JobPhase{run, fail}, said + short(0)},
		"another member of the cluster":            {nil, []int{1}, []api.JobPhase{run, fail}, said + short(1)},
		"heard of when it has ended":               {nil, []int{0}, []api.JobPhase{fail}, said + short(0)},
		"a member of another cluster":              {nil, []int{2}, []api.JobPhase{run, fail}, said},
		"before the job":                           {[]int{0}, nil, []api.JobPhase{run, fail}, said},
		"a job that ended well all the same":       {nil, []int{0}, []api.JobPhase{run, api.JobSucceeded}, said},
		"nobody, and it was killed for other ends": {nil, nil, []api.JobPhase{run, fail}, said},
	} {
		t.Run(name, func(t *testing.T) {
			host := fake.NewHost()
			d := fake.New(host, &drivertest.Ports{})
			a := &Agent{members: map[string]*memberState{}}
			for i, cluster := range []string{"c", "c", "other"} {
				m := driver.Member{Assignment: api.Assignment{
					ID: fmt.Sprint(i), ClusterUID: cluster, Member: fmt.Sprintf("c-%d", i), Memory: []api.MemoryClaim{{Bytes: 256 << 20}},
				}}
				if err := d.Start(t.Context(), m); err != nil {
					t.Fatal(err)
				}
				a.members[m.Assignment.ID] = &memberState{
					id: m.Assignment.ID, driver: d, want: &agentstream.Member{Member: m}, jobs: map[string]agentstream.JobObserved{},
				}
			}
			for _, i := range test.before {
				host.RunOutOfMemory(fmt.Sprint(i))
			}
			m := a.members["0"]
			for n, phase := range test.phases {
				if n == len(test.phases)-1 {
					for _, i := range test.short {
						host.RunOutOfMemory(fmt.Sprint(i))
					}
				}
				a.hearJob(m, agentstream.JobObserved{ID: "j", Phase: phase, Message: said})
			}
			if got := m.jobs["j"].Message; got != test.want {
				t.Errorf("the job: %q, want %q", got, test.want)
			}
			if len(m.kills) != 0 {
				t.Errorf("kept of a job that has ended: %v", m.kills)
			}
		})
	}
}
