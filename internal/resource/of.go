package resource

import "github.com/nearmetal/nearmetal/api"

// OfShape returns what one member of the shape takes of its node.
func OfShape(s api.Shape) Vector {
	return Vector{Cores: least(int64(s.Cores)), Memory: least(int64(s.Memory))}
}

// OfMember returns what one member of the shape takes of its project's quota.
func OfMember(s api.Shape) Vector {
	v := OfShape(s)
	v[Members] = 1
	return v
}

// OfGroups returns what all members of the groups, without spares, take of nodes.
func OfGroups(groups []api.Group) Vector {
	var sum Vector
	for i := range groups {
		sum = sum.Plus(OfShape(groups[i].Shape).Times(groups[i].Size))
	}
	return sum
}

// OfAssignment returns what an assignment holds. A part is no member of its own.
func OfAssignment(a *api.Assignment) Vector {
	v := Vector{Cores: int64(len(a.Slots)), Memory: least(a.MemoryBytes())}
	if !a.IsPart() {
		v[Members] = 1
	}
	return v
}

// OfSpan returns what was held throughout a span.
func OfSpan(s *api.UsageSpan) Vector {
	return Vector{Members: least(int64(s.Members)), Cores: least(int64(s.Cores)), Memory: least(s.MemoryBytes)}
}

// OfNodeSpan returns what a node offered throughout a span.
func OfNodeSpan(s *api.NodeSpan) Vector {
	return Vector{Cores: least(int64(s.Cores)), Memory: least(s.MemoryBytes)}
}

// OfQuota returns the amounts of a quota, or of what is used of one.
func OfQuota(q api.Quota) Vector {
	return Vector{
		Clusters: least(int64(q.Clusters)), Members: least(int64(q.Members)), Cores: least(int64(q.Cores)), Memory: least(int64(q.Memory)),
	}
}

// Quota returns the amounts in the form in which the API has them.
func (v Vector) Quota() api.Quota {
	return api.Quota{Clusters: int(v[Clusters]), Members: int(v[Members]), Cores: int(v[Cores]), Memory: api.Bytes(v[Memory])}
}

// least keeps amounts from being negative.
func least(n int64) int64 { return max(n, 0) }
