package plan

import "fmt"

// ended reports whether a volume is the home of a cluster that has ended or is being deleted.
func (s *Situation) ended(v *Volume) bool {
	return v.Intent != nil && v.Intent.ClusterUID != "" && s.Ended[v.Intent.ClusterUID]
}

// planEnded purges the home of a cluster that has ended, as soon as nobody needs it any more. It has no retention, and nothing brings it back.
func (s *Situation) planEnded(v *Volume) []Operation {
	switch {
	case v.Record == nil:
		return []Operation{Forget{}}
	case s.needed(v):
		return nil
	}
	return []Operation{Purge{Cluster: v.Intent.ClusterUID}}
}

// needed reports whether a volume that is to go can't be purged yet: a member has it attached, or a clone is still to begin as it.
func (s *Situation) needed(v *Volume) bool {
	return s.Claimed[v.UID()] || s.clonesOf(v.UID()) != nil || s.attached(v)
}

// endedText says what the purge of a cluster's home waits for.
func (s *Situation) endedText(v *Volume) string {
	return fmt.Sprintf("cluster %s is deleted; %s", ownName(v.Intent.Cluster), s.purgedWhen(v))
}
