package apiserver_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// thousand is a site with 1,000 ready clusters of two members.
func thousand(b *testing.B) *apiservertest.Site {
	b.Helper()
	s := apiservertest.New(b, memory.New(), nil)
	for i := range 16 {
		s.AddNode(fmt.Sprintf("n%02d", i), 256)
	}
	c := s.LocalClient()
	for i := range 1000 {
		name := fmt.Sprintf("c%03d", i)
		if _, err := c.CreateCluster(b.Context(), api.ClusterRequest{Name: name, Size: 2}); err != nil {
			b.Fatal(err)
		}
		s.Place(name)
		s.MakeReady(name)
	}
	return s
}

// BenchmarkListAThousandClusters is the whole of a list over HTTPS.
func BenchmarkListAThousandClusters(b *testing.B) {
	c := thousand(b).Client()
	var took []time.Duration
	for b.Loop() {
		start := time.Now()
		list, err := c.Clusters(b.Context())
		if err != nil || len(list) != 1000 {
			b.Fatalf("%d clusters, %v", len(list), err)
		}
		took = append(took, time.Since(start))
	}
	percentiles(b, took)
}

// BenchmarkWatchAmongAThousandClusters is the time from an agent's word to a watch of all, while other clusters change too.
func BenchmarkWatchAmongAThousandClusters(b *testing.B) {
	s := thousand(b)
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	changes := make(chan api.Cluster, 1<<16)
	synced := make(chan bool)
	go func() {
		for change, err := range s.Client().WatchClusters(ctx) {
			if err != nil {
				return
			}
			if change.Synced {
				close(synced)
				continue
			}
			if change.Cluster.Name == "c500" {
				changes <- change.Cluster
			}
		}
	}()
	<-synced
	for len(changes) > 0 {
		<-changes
	}
	var node, id string
	for a := range s.Cache.Cluster("c500").Held() {
		node, id = a.Node, a.ID
	}
	phases := []api.MemberPhase{api.MemberUnhealthy, api.MemberReady}
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		start := time.Now()
		s.Live.SetMember(node, id, phases[i%2], "")
		for c := range changes {
			if c.Status.Members[1].Phase == phases[i%2] {
				break
			}
		}
		took = append(took, time.Since(start))
	}
	percentiles(b, took)
}

func percentiles(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	at := func(p float64) float64 { return float64(took[int(p*float64(len(took)-1))].Microseconds()) / 1000 }
	b.ReportMetric(at(0.5), "p50-ms")
	b.ReportMetric(at(0.99), "p99-ms")
}
