package situation

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/admission"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/offer"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/state"
)

// Explainer explains the queue as it is now, by the plan that the leader would make. It may be used from many goroutines.
type Explainer struct {
	Views interface{ View() *state.View }
	Heard Heard
	// Fabrics are those of this server: one that does not lead has read nothing of them.
	Fabrics Fabrics
	// Now reads the machine's clock, Time makes the site's time of a reading.
	Now  func() time.Time
	Time func(reading time.Time) time.Time
	// Since is when this server started to hear of nodes.
	Since     time.Time
	Deadlines lifecycle.Deadlines
	// Offers is what the site carries for all its machines.
	Offers offer.Site
	// Power returns the power of a node when idle, what full utilization adds, and its CPUs; false: it is not known. nil: of no node is.
	Power func(node string) (idle, slope float64, cpus int, ok bool)
	// EnergyJoules returns what projects used in api.EnergyWindow, of those whose quota bounds it. nil: no quota does.
	EnergyJoules func(now time.Time) map[string]int64
}

// NoRoom is the error of a change that asks for room there is not.
type NoRoom struct {
	// Never is true when the site, or the quota, could never give it; else it could wait.
	Never      bool
	Constraint string
	Reason     string
}

func (e *NoRoom) Error() string { return e.Reason }

// Impossible reports that waiting would not help.
func (e *NoRoom) Impossible() bool { return e.Never }

// plan is one look at the queue.
type plan struct {
	site      *Site
	asked     []Asked
	decisions []admission.Decision
	free      *placement.View
}

func (e *Explainer) site() *Site {
	reading := e.Now()
	s := Observe(e.Views.View(), e.Heard, e.Fabrics, e.Time(reading), reading, e.Since, e.Deadlines)
	if e.EnergyJoules != nil {
		s.EnergyJoules = e.EnergyJoules(s.Now)
	}
	return s
}

func (s *Site) plan(asked []Asked, offers offer.Site) (plan, error) {
	room := Room{Offers: offers, Fabrics: s.fabrics, Encrypted: s.Encrypted, Now: s.Now}
	free, err := room.Update(s.View, s.Available)
	if err != nil {
		return plan{}, err
	}
	return plan{site: s, asked: asked, decisions: admission.Plan(s.Admission(asked, free)), free: free}, nil
}

// Queue lists all that waits for room, in the order in which it is planned.
func (e *Explainer) Queue() ([]api.Waiting, error) {
	site := e.site()
	p, err := site.plan(site.Needs(), e.Offers)
	if err != nil {
		return nil, err
	}
	return p.waiting(func(*state.Cluster) bool { return true }), nil
}

// Explain says why a cluster is where it is. The cluster must exist.
func (e *Explainer) Explain(name string) (api.Explanation, error) {
	site := e.site()
	c := site.View.Cluster(name)
	if c == nil {
		return api.Explanation{}, fmt.Errorf("cluster %q %w", name, state.ErrNotFound)
	}
	p, err := site.plan(site.Needs(), e.Offers)
	if err != nil {
		return api.Explanation{}, err
	}
	out := api.Explanation{Cluster: name, Phase: api.ClusterPending, Waiting: p.waiting(func(other *state.Cluster) bool { return other == c })}
	if c.Record != nil {
		out.Phase = c.Record.Phase
	}
	out.Machines, out.Data, out.Caches = p.machines(c), p.data(c), p.caches(c)
	out.DataChoices, out.DataDecisions, out.DataOutcomes, out.DataReads = p.choices(c, e.Power), p.dataDecisions(c, e.Power), p.outcomes(c), p.dataReads(c)
	out.Message = strings.Join(append([]string{explain(c, out, site.Now) + smallCaches(out.Caches)}, p.stayingServers(c)...), " ")
	return out, nil
}

// Machines says whether the groups of a cluster to be that need whole machines could have each machine now. There are none for other groups.
func (e *Explainer) Machines(intent api.ClusterIntent) ([]api.MachineFit, error) {
	if !slices.ContainsFunc(intent.Spec.Groups, func(g api.Group) bool { return placement.Whole(g.Stack) }) {
		return nil, nil
	}
	site := e.site()
	p, err := site.plan(nil, e.Offers)
	if err != nil {
		return nil, err
	}
	return p.machines(&state.Cluster{Intent: intent}), nil
}

// CanGrow reports whether the cluster, with its intent changed to this, would get the room that it then asks for: nil, or a *NoRoom.
func (e *Explainer) CanGrow(intent api.ClusterIntent) error {
	return e.canGet(intent, lifecycle.NeedScale)
}

// CanResize is CanGrow for the members that are to have another size.
func (e *Explainer) CanResize(intent api.ClusterIntent) error {
	return e.canGet(intent, lifecycle.NeedResize)
}

// CanMove is CanGrow for the next member that is to move.
func (e *Explainer) CanMove(intent api.ClusterIntent) error {
	return e.canGet(intent, lifecycle.NeedMove)
}

func (e *Explainer) canGet(intent api.ClusterIntent, kind lifecycle.NeedKind) error {
	site := e.site()
	c := site.View.Cluster(intent.Name)
	if c == nil {
		return fmt.Errorf("cluster %q %w", intent.Name, state.ErrNotFound)
	}
	changed := *c
	changed.Intent = intent
	// It is asked as if it could wait: what it gets now is the same, and what can never be is told apart.
	changed.Intent.Spec.Queue = true
	asked := slices.DeleteFunc(site.Needs(), func(a Asked) bool { return a.Cluster == c })
	for _, op := range lifecycle.PlanCluster(site.Cluster(&changed)) {
		if need, ok := op.(lifecycle.Need); ok {
			asked = append(asked, Asked{&changed, need})
		}
	}
	p, err := site.plan(asked, e.Offers)
	if err != nil {
		return err
	}
	for _, d := range p.decisions {
		a := p.asked[d.Request]
		if a.Cluster != &changed || a.Need.Kind != kind || d.Verdict == admission.Admit {
			continue
		}
		return &NoRoom{Never: d.Verdict == admission.Refuse, Constraint: d.Constraint, Reason: d.Reason}
	}
	return nil
}

// waiting are the requests that wait, of the clusters chosen.
func (p plan) waiting(of func(*state.Cluster) bool) []api.Waiting {
	out := []api.Waiting{}
	for _, d := range p.decisions {
		a := p.asked[d.Request]
		if d.Verdict == admission.Admit || !of(a.Cluster) {
			continue
		}
		intent := &a.Cluster.Intent
		w := api.Waiting{
			Cluster: intent.Name, Project: project(a.Cluster), User: intent.User, Kind: string(a.Need.Kind), Members: len(a.Need.Members),
			Position: d.Position, Constraint: d.Constraint, Reason: d.Reason, Since: p.site.request(a).Since, Priority: intent.Spec.Priority,
			ShareUsed: d.ShareUsed,
		}
		for _, m := range a.Need.Members {
			for _, g := range intent.Spec.Groups {
				if g.Name == m.Group {
					w.Cores += g.Cores
				}
			}
		}
		if !d.Earliest.IsZero() {
			earliest := d.Earliest
			w.Earliest = &earliest
		}
		out = append(out, w)
	}
	return out
}

// explain says it in a few sentences.
func explain(c *state.Cluster, e api.Explanation, now time.Time) string {
	var text []string
	message := ""
	if c.Record != nil {
		message = c.Record.Message
	}
	switch e.Phase {
	case api.ClusterPending:
		text = append(text, "It was just created; the leader has not decided yet.")
	case api.ClusterQueued:
		if waits := "It waits in the queue"; len(e.Waiting) == 0 && message != "" { // nodes have room for it: what else binds, the leader has noted
			text = append(text, sentence(waits+": "+message))
		} else {
			text = append(text, sentence(waits))
		}
	case api.ClusterReady:
		text = append(text, "It is ready.")
	default:
		text = append(text, sentence(fmt.Sprintf("It is %s: %s", e.Phase, cmp.Or(message, "no details are known"))))
	}
	for _, w := range e.Waiting {
		text = append(text, sentence(describe(w, now)))
	}
	if len(e.Waiting) == 0 && e.Phase == api.ClusterReady {
		text = append(text, "None of its members waits for room.")
	}
	return strings.Join(text, " ")
}

func describe(w api.Waiting, now time.Time) string {
	what := map[string]string{
		"create": "Its %d members wait", "scale": "%d new members wait", "heal": "The replacement of %d lost members waits", "spare": "%d spare places wait",
		"restore": "%d saved members wait", "move": "%d members wait to move to other nodes",
		"resize": "%d members wait for room for their new size",
	}[w.Kind]
	if w.Members == 1 {
		what = map[string]string{
			"create": "Its %d member waits", "scale": "%d new member waits", "heal": "The replacement of %d lost member waits", "spare": "%d spare place waits",
			"restore": "%d saved member waits", "move": "%d member waits to move to another node",
			"resize": "%d member waits for room for its new size",
		}[w.Kind]
	}
	text := fmt.Sprintf(what, w.Members)
	if w.Position > 0 {
		text += fmt.Sprintf(" at position %d in the queue", w.Position)
	}
	text += ": " + w.Reason
	if w.Earliest != nil && !strings.Contains(w.Reason, "start") {
		text += fmt.Sprintf("; it can start in %s at the latest", w.Earliest.Sub(now).Round(time.Second))
	}
	return text
}

func sentence(text string) string {
	if strings.HasSuffix(text, ".") {
		return text
	}
	return text + "."
}
