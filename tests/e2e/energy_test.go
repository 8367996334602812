package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

func (s *site) energy() api.EnergyReport {
	s.t.Helper()
	var r api.EnergyReport
	if err := json.Unmarshal([]byte(s.must("energy", "-o", "json")), &r); err != nil {
		s.t.Fatal(err)
	}
	return r
}

// joulesOf is what a cluster used, with its jobs.
func joulesOf(r api.EnergyReport, cluster string) (all, jobs float64) {
	for _, c := range r.Clusters {
		if c.Cluster != cluster {
			continue
		}
		e := c.Joules()
		all += e.MeasuredJoules + e.ModelledJoules
		if c.Job != "" {
			jobs += e.MeasuredJoules + e.ModelledJoules
		}
	}
	return all, jobs
}

// The counters are a stand-in's that follows the machine's CPU time: what is tested is that the energy goes where the CPU time went.
func TestABusyClusterUsesMoreEnergyThanAnIdleOneAndNothingIsLost(t *testing.T) {
	nothingLeft(t)
	s := startSite(t, 1, "--node-cores", "2", "--rapl-tree", "stand-in")
	for _, name := range []string{"busy", "idle"} {
		s.must("cluster", "create", name, "--size", "1", "--cores", "1", "--memory", "128MiB")
	}
	// Eight seconds of CPU time, however long that takes.
	s.must("run", "busy", "--", "sh", "-c", "(ulimit -t 8; while :; do :; done); true")
	var r api.EnergyReport
	s.eventually(time.Minute, "the energy of the busy cluster's job", func() bool {
		r = s.energy()
		_, jobs := joulesOf(r, "busy")
		return jobs > 0
	})
	busy, jobs := joulesOf(r, "busy")
	idle, idleJobs := joulesOf(r, "idle")
	if busy < 5*idle || jobs < busy/2 || idleJobs != 0 {
		t.Errorf("the busy cluster used %.3f J, %.3f J of that in its job, and the idle one %.3f J; want at least five times as much, most of it in the job", busy, jobs, idle)
	}
	if len(r.Nodes) != 1 {
		t.Fatalf("%d nodes are reported, want 1", len(r.Nodes))
	}
	n := r.Nodes[0]
	if n.Counter == nil || n.Clusters == nil || n.Idle == nil || n.Unattributed == nil {
		t.Fatalf("the node's energy is not known: %+v", n)
	}
	if sum := n.Clusters.Plus(*n.Idle).Plus(*n.Unattributed); sum != *n.Counter {
		t.Errorf("the node counted %+v, and its parts add up to %+v", *n.Counter, sum)
	}
	var clusters api.EnergyAmount
	for _, c := range r.Clusters {
		clusters = clusters.Plus(c.EnergyAmount)
	}
	if clusters != *n.Clusters {
		t.Errorf("the clusters used %+v, and the node says %+v", clusters, *n.Clusters)
	}
	if n.Tag != api.EnergyModelled || n.Source != api.EnergyRAPL || n.Watts == nil || !strings.Contains(n.Reason, "stand-in") || n.Counter.MeasuredMicrojoules != 0 {
		t.Errorf("the node reports %s by %s, %q, %+v; want what a stand-in says called modelled, and nothing measured", n.Tag, n.Source, n.Reason, *n.Counter)
	}
	traffic := 0
	for _, p := range n.Points {
		if p.Watts != nil && p.SentRate != nil && p.CPUCores != nil {
			traffic++
		}
	}
	if traffic == 0 {
		t.Errorf("no point of the node has power, work and traffic of one interval: %+v", n.Points)
	}

	t.Run("a member's power is shown with its use and its traffic", func(t *testing.T) {
		s := s.as(t)
		s.eventually(time.Minute, "a point with all of them", func() bool {
			var top []api.MemberTop
			if err := json.Unmarshal([]byte(s.must("cluster", "top", "busy", "--once", "-o", "json")), &top); err != nil {
				t.Fatal(err)
			}
			for _, m := range top {
				for _, p := range m.Points {
					if p.PowerWatts != nil && *p.PowerWatts > 0 && p.PowerTag == api.EnergyModelled && p.CPUCores != nil && p.SentRate != nil {
						return true
					}
				}
			}
			return false
		})
	})
	t.Run("usage has it, too", func(t *testing.T) {
		text := s.as(t).must("usage", "--by", "cluster", "-o", "csv")
		if !strings.Contains(text, "energy_modelled_joules") {
			t.Errorf("usage shows no energy:\n%s", text)
		}
	})
	t.Run("a server that was killed goes on counting where it was", func(t *testing.T) {
		s := s.as(t)
		s.eventually(2*time.Minute, "the account to be stored", func() bool {
			before := s.energy().Nodes[0].Counter
			return before != nil && before.ModelledMicrojoules > n.Counter.ModelledMicrojoules+45*23e6 // 45 s at 23 W: it was stored
		})
		s.kill()
		s.start()
		s.waitForNodes(1)
		s.eventually(time.Minute, "the energy from before", func() bool {
			again, _ := joulesOf(s.energy(), "busy")
			return again >= busy
		})
		again := s.energy().Nodes[0]
		if sum := again.Clusters.Plus(*again.Idle).Plus(*again.Unattributed); sum != *again.Counter {
			t.Errorf("after the restart the node counted %+v, and its parts add up to %+v", *again.Counter, sum)
		}
	})
	t.Run("a project that used its energy gets no more room, and what runs goes on", func(t *testing.T) {
		s := s.as(t)
		s.must("project", "set", "default", "--energy", "1J")
		if text := s.must("project", "show", "default"); !strings.Contains(text, "kWh of 2.778e-07 kWh in 30 days") {
			t.Errorf("the project does not show its energy:\n%s", text)
		}
		refused := []string{"cluster", "create", "more", "--size", "1", "--cores", "1", "--memory", "64MiB"}
		s.must("cluster", "delete", "idle")
		s.eventually(time.Minute, "a refusal", func() bool {
			a := s.cli(refused...)
			if a.code == 0 {
				s.must("cluster", "delete", "more")
			}
			return a.code != 0 && strings.Contains(a.err, "in the last 30 days, and its quota is 2.778e-07 kWh")
		})
		s.must("run", "busy", "--", "true")
		s.must("project", "set", "default", "--energy", "0")
		s.must("cluster", "create", "more", "--size", "1", "--cores", "1", "--memory", "64MiB")
	})
}

func TestAMachineWithoutCountersSaysThatItsEnergyIsUnavailable(t *testing.T) {
	nothingLeft(t)
	s := startSite(t, 1, "--rapl-tree", t.TempDir())
	s.eventually(time.Minute, "the reason", func() bool {
		r := s.energy()
		return len(r.Nodes) == 1 && strings.Contains(r.Nodes[0].Reason, "virtual machine")
	})
	n := s.energy().Nodes[0]
	if n.Tag != api.EnergyUnavailable || n.Watts != nil || n.Counter != nil {
		t.Errorf("the node is %+v; want it unavailable, with neither power nor energy", n)
	}
	if text := s.must("energy"); !strings.Contains(text, "unavailable") || strings.Contains(text, " 0 J") {
		t.Errorf("want unavailable and no zero in\n%s", text)
	}
}
