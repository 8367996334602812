package resource

import (
	"iter"

	"github.com/nearmetal/nearmetal/api"
)

// OfShape returns what one member of the shape takes of its project's quota.
func OfShape(s api.Shape) Vector {
	return Vector{Cores: least(int64(s.Cores)), Memory: least(int64(s.Memory)), Disk: least(int64(s.Disk))}
}

// OfMember returns what one member of the group takes of its project's quota. Parts tell what its devices take.
func OfMember(g *api.Group, parts Parts) Amounts {
	v := OfShape(g.Shape)
	v[Members] = 1
	return Amounts{v, parts.of(g)}
}

// OfSpare returns what one spare of the group takes of its project's quota. It holds no devices.
func OfSpare(g *api.Group) Amounts { return OfMember(g, nil) }

// OfGroup returns what so many members of the group take of their project's quota, and so many spares.
func OfGroup(g *api.Group, members, spares int, parts Parts) Amounts {
	return OfMember(g, parts).Times(members).Plus(OfSpare(g).Times(spares))
}

// OfGroups returns what all members of the groups, without spares, take of nodes.
func OfGroups(groups []api.Group) Vector {
	var sum Vector
	for i := range groups {
		sum = sum.Plus(OnNode(&groups[i]).Times(groups[i].Size))
	}
	return sum
}

// OfAssignment returns what an assignment holds. A part is no member of its own.
func OfAssignment(a *api.Assignment) Amounts {
	held := Amounts{Vector: vectorOf(a)}
	for i := range a.Devices {
		held.Devices = held.Devices.Plus(named(a.Devices[i].Class, a.Devices[i].Takes))
	}
	return held
}

// OfAssignments returns what assignments hold together.
func OfAssignments(all iter.Seq[*api.Assignment]) Amounts {
	var held Amounts
	for a := range all {
		held.Vector = held.Vector.Plus(vectorOf(a))
		if len(a.Devices) > 0 {
			if held.Devices == nil {
				held.Devices = Devices{}
			}
			held.Devices.add(OfAssignment(a).Devices)
		}
	}
	return held
}

func vectorOf(a *api.Assignment) Vector {
	v := Vector{Cores: int64(len(a.Slots)), Memory: least(a.MemoryBytes()), Disk: least(a.DiskBytes)}
	if a.ServesGPU() {
		v[Memory] = 0 // the node's price of a remote GPU, for which quotas and usage have a counter of its own
	}
	if !a.IsPart() && !a.IsSnapshot() {
		v[Members] = 1
	}
	return v
}

// AddTo adds what an assignment holds to the span throughout which it was held.
func (a Amounts) AddTo(s *api.UsageSpan) {
	s.Members += int(a.Vector[Members])
	s.Cores += int(a.Vector[Cores])
	s.MemoryBytes += a.Vector[Memory]
	s.DiskBytes += a.Vector[Disk]
	s.Devices = Devices(s.Devices).Plus(a.Devices)
}

// OfSpan returns what was held throughout a span.
func OfSpan(s *api.UsageSpan) Amounts {
	return Amounts{Vector{
		Members: least(int64(s.Members)), Cores: least(int64(s.Cores)), Memory: least(s.MemoryBytes), Disk: least(s.DiskBytes), Storage: least(s.StorageBytes),
	}, s.Devices}
}

// OfNodeSpan returns what a node offered throughout a span.
func OfNodeSpan(s *api.NodeSpan) Amounts {
	return Amounts{Vector{Cores: least(int64(s.Cores)), Memory: least(s.MemoryBytes)}, s.Devices}
}

// OfQuota returns the amounts of a quota, or of what is used of one.
func OfQuota(q api.Quota) Amounts {
	return Amounts{Vector{
		Clusters: least(int64(q.Clusters)), Members: least(int64(q.Members)), Cores: least(int64(q.Cores)), Memory: least(int64(q.Memory)),
		Disk: least(int64(q.Disk)), Storage: least(int64(q.Storage)),
	}, q.Devices}
}

// Quota returns the amounts in the form in which the API has them.
func (a Amounts) Quota() api.Quota {
	v := a.Vector
	return api.Quota{
		Clusters: int(v[Clusters]), Members: int(v[Members]), Cores: int(v[Cores]), Memory: api.Bytes(v[Memory]), Disk: api.Bytes(v[Disk]), Storage: api.Bytes(v[Storage]), Devices: a.Devices,
	}
}

// least keeps amounts from being negative.
func least(n int64) int64 { return max(n, 0) }
