package admission

import (
	"fmt"
	"strings"

	"github.com/nearmetal/nearmetal/internal/resource"
)

// account is a project's account while a plan is made.
type account struct {
	project string
	quota   resource.Limit
	// used is what the project holds, with what this plan has admitted.
	used resource.Vector
	// withHead is what it will hold with the head besides; nil: the head is not of this project.
	withHead  *resource.Vector
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
		p.accounts[project] = a
	}
	return a
}

// wants is what a request adds to what its project holds. A replacement adds nothing: the lost member counts until it is replaced.
func wants(r *Request) resource.Vector {
	var all resource.Vector
	if r.Kind == KindHeal {
		return all
	}
	for _, g := range r.Groups {
		n := g.Size
		if r.Kind == KindCreate {
			n += g.Spares
		}
		all = all.Plus(resource.OfMember(g.Shape).Times(n))
	}
	if r.Kind == KindCreate {
		all[resource.Clusters] = 1
	}
	return all
}

// overText describes each class that is over the quota; holder names the one that holds what is used.
func overText(holder string, used, wants resource.Vector, quota resource.Limit, over []resource.Class) string {
	parts := make([]string, len(over))
	for i, c := range over {
		parts[i] = "needs " + c.Text(wants[c]) + ", but "
		if used[c] > 0 {
			parts[i] += holder + " already holds " + c.Text(used[c]) + " and "
		}
		parts[i] += "the quota is " + c.Text(quota[c])
	}
	return strings.Join(parts, "; ")
}

// checkQuota tells whether the quota stands against the request, for now or for ever.
func (p *planner) checkQuota(a *ask) cause {
	acc := a.account
	over := acc.quota.Exceeded(acc.used, a.wants)
	if len(over) == 0 {
		return noCause
	}
	var own resource.Vector
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

// holds is what a cluster holds of its project's quota.
func (p *planner) holds(cluster string) resource.Vector {
	if p.owned == nil {
		p.owned = map[string]resource.Vector{}
		for _, r := range p.in.Running {
			if r.Releasing {
				continue
			}
			for _, id := range r.Assignments {
				if s, ok := p.in.Free.ShareOf(id); ok {
					held := s.Amounts()
					held[resource.Members] = 1
					p.owned[r.Cluster] = p.owned[r.Cluster].Plus(held)
				}
			}
		}
	}
	return p.owned[cluster]
}
