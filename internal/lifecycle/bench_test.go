package lifecycle

import (
	"fmt"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

// BenchmarkPlanCluster is a look at a ready cluster in which nothing is to be done: the leader takes one at every cluster in each pass.
func BenchmarkPlanCluster(b *testing.B) {
	for _, n := range []int{1, 1000} {
		l := newLife(api.ClusterReady)
		l.Assignments = nil
		l.size(n)
		for i := range n {
			l.add(fmt.Sprint("c-", i), "n1", i)
		}
		l.seeAll(api.MemberReady)
		b.Run(fmt.Sprintf("members=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if ops := PlanCluster(l.ClusterInput); len(ops) > 0 {
					b.Fatal(ops)
				}
			}
		})
	}
}
