package apiserver_test

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

func TestWholeMachinesAreNotPaused(t *testing.T) {
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.Offers.Metal = true })
	s.AddNode("n1", 8)
	c := s.Client()
	if _, err := c.CreateCluster(t.Context(), api.ClusterRequest{Name: "c1"}); err != nil {
		t.Fatal(err)
	}
	s.Place("c1")
	s.MakeReady("c1")
	_, _, err := s.Repo.UpdateIntent(t.Context(), "c1", "", func(in *api.ClusterIntent) error { in.Spec.Groups[0].Stack = api.StackMetal; return nil })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.PauseCluster(t.Context(), "c1"); !client.HasCode(err, "cant_pause") || !strings.Contains(err.Error(), "scale the cluster down") {
		t.Errorf("pause: %v, want it refused with what to do", err)
	}
}
