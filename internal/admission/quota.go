package admission

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// account is a project's account while a plan is made.
type account struct {
	project string
	quota   resource.Limit
	// used is what the project holds, with what this plan has admitted.
	used resource.Amounts
	// energy tells by how much the quota of energy is reached; empty: it is not.
	energy string
	// withHead is what it will hold with the head besides; nil: the head is not of this project.
	withHead  *resource.Amounts
	shareUsed float64
	byUser    map[string]float64
}

func (p *planner) accountOf(project string) *account {
	a, ok := p.accounts[project]
	if !ok {
		from := p.in.Accounts[project]
		shares := float64(max(from.Shares, 1))
		a = &account{
			project: project, quota: resource.Limit(resource.OfQuota(from.Quota)), used: from.Used, shareUsed: from.DecayedCoreSeconds / shares, byUser: from.ByUser,
		}
		if limit := from.Quota.EnergyJoules; limit > 0 && from.EnergyJoules >= limit {
			a.energy = fmt.Sprintf("project %q used %s in the last %d days, and its quota is %s",
				project, energyText(from.EnergyJoules), api.EnergyWindow/(24*time.Hour), energyText(limit))
		}
		p.accounts[project] = a
	}
	return a
}

// energyText writes joules as kilowatt-hours.
func energyText(joules int64) string {
	return strconv.FormatFloat(float64(joules)/3.6e6, 'g', 4, 64) + " kWh"
}

// wants is what a request adds to what its project holds. A replacement adds nothing: the lost member counts until it is replaced. Of a saved one only
// the membership does. A resize adds what it grows by, and so does the replacement of a member that was to grow.
func wants(r *Request, parts resource.Parts) resource.Amounts {
	var all resource.Amounts
	switch {
	case r.Kind == KindHeal && !r.Regains:
		if r.Held != nil { // its group was given another size since
			all.Vector = resource.OfShape(r.Groups[0].Shape).Beyond(resource.OfShape(*r.Held))
		}
		return all
	case r.Kind == KindResize: // what it holds counts already
		return resource.Amounts{Vector: resource.OfShape(r.Groups[0].Shape)}.Beyond(resource.OfAssignment(r.Resizes))
	}
	for i := range r.Groups {
		g := &r.Groups[i]
		members, spares := g.Size, 0
		switch r.Kind {
		case KindSpare:
			members, spares = 0, g.Size
		case KindCreate:
			spares = g.Spares
		}
		all = all.Plus(resource.OfGroup(g, members, spares, parts))
	}
	if r.Kind == KindMove { // it is the same member, on another node
		return resource.Amounts{}
	}
	if r.Kind == KindRestore || r.Kind == KindHeal {
		all.Vector[resource.Members] = 0 // saved members are members
	}
	if r.Kind == KindCreate {
		all.Vector[resource.Clusters] = 1
	}
	return all
}

// overText describes each unit that is over the quota; holder names the one that holds what is used.
func overText(holder string, used, wants resource.Amounts, quota resource.Limit, over []resource.Unit) string {
	parts := make([]string, len(over))
	for i, u := range over {
		parts[i] = "needs " + u.Text(wants.Of(u)) + ", but "
		if n := used.Of(u); n > 0 {
			parts[i] += holder + " already holds " + u.Text(n) + " and "
		}
		parts[i] += "the quota is " + u.Text(resource.Amounts(quota).Of(u))
	}
	return strings.Join(parts, "; ")
}

// checkQuota tells whether the quota stands against the request, for now or for ever.
func (p *planner) checkQuota(a *ask) cause {
	acc := a.account
	over := acc.quota.Exceeded(acc.used, a.wants)
	if len(over) == 0 {
		if a.lacksEnergy() {
			return overQuota
		}
		return noCause
	}
	var own resource.Amounts
	if a.request.Kind == KindScale {
		own = p.holds(a.request.Cluster)
	}
	if always := acc.quota.Exceeded(own, a.wants); len(always) > 0 && a.request.Kind != KindSpare {
		a.over = overText("the cluster", own, a.wants, acc.quota, always)
		return neverInQuota
	}
	a.over = overText(fmt.Sprintf("project %q", acc.project), acc.used, a.wants, acc.quota, over)
	return overQuota
}

// lacksEnergy reports whether a request adds something though its project has used its energy, and notes that.
func (a *ask) lacksEnergy() bool {
	if a.account.energy == "" || a.wants.IsZero() {
		return false
	}
	a.over = "needs more room, but " + a.account.energy
	return true
}

// holds is what a cluster holds of its project's quota.
func (p *planner) holds(cluster string) resource.Amounts {
	if p.owned == nil {
		p.owned = map[string]resource.Amounts{}
		for _, r := range p.in.Running {
			if r.Releasing {
				continue
			}
			for _, id := range r.Assignments {
				if a := p.in.Free.Held(id); a != nil {
					p.owned[r.Cluster] = p.owned[r.Cluster].Plus(resource.OfAssignment(a))
				}
			}
		}
	}
	return p.owned[cluster]
}
