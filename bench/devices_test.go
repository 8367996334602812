package main

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/resource/device"
)

// solveOwn is the site's answer, in this process.
func solveOwn(t *testing.T, p deviceProblem) deviceAnswer {
	t.Helper()
	machine, requests := p.own()
	tree, err := device.NewTree(machine)
	if err != nil {
		t.Fatalf("%s: %v", p.Name, err)
	}
	parts, refusal := tree.Place(requests)
	if refusal != nil {
		return deviceAnswer{Outcome: outcomeRefused}
	}
	a := deviceAnswer{Outcome: outcomePlaced}
	for _, of := range parts {
		a.Chosen = append(a.Chosen, of[0].Device)
	}
	return a
}

func TestProblemsOfDevicesHaveTheAnswersThatTheyName(t *testing.T) {
	for _, p := range deviceProblems() {
		a := solveOwn(t, p)
		if err := p.check(a); err != nil || (a.Outcome == outcomePlaced) != *p.Fits {
			t.Errorf("%s: %s, %v", p.Name, a.Outcome, err)
		}
	}
	placed := 0
	for seed := range uint64(60) {
		p := randomDeviceProblem(seed, 8)
		if !reflect.DeepEqual(p, randomDeviceProblem(seed, 8)) {
			t.Fatalf("seed %d makes two problems", seed)
		}
		if text, err := json.Marshal(p); err != nil || strings.Contains(string(text), "null") {
			t.Errorf("seed %d: %s, %v", seed, text, err)
		}
		a := solveOwn(t, p)
		if err := p.check(a); err != nil {
			t.Error(err)
		}
		if a.Outcome == outcomePlaced {
			placed++
		}
	}
	if placed < 10 || placed > 50 {
		t.Errorf("%d of 60 random problems have an answer; want some of both", placed)
	}
}

func TestWrongAnswersAboutDevicesAreFound(t *testing.T) {
	yes := true
	p := deviceProblem{
		Name: "p", Fits: &yes, Ways: map[string]map[string]int64{"vf": {"vf": 1}, "pf": {"vf": 2}},
		Devices:  []problemDevice{{ID: "d0", Has: map[string]int64{"vf": 2}, Ways: []string{"vf", "pf"}}, {ID: "d1", Has: map[string]int64{"vf": 2}, Ways: []string{"vf"}}},
		Requests: []problemRequest{{Way: "pf"}, {Way: "vf", Not: []string{"d0"}}},
	}
	for what, tt := range map[string]struct {
		a    deviceAnswer
		want string
	}{
		"right":                    {deviceAnswer{Outcome: outcomePlaced, Chosen: []string{"d0", "d1"}}, ""},
		"gave up":                  {deviceAnswer{Outcome: outcomeGaveUp}, ""},
		"refused what fits":        {deviceAnswer{Outcome: outcomeRefused}, "although there is an answer"},
		"a request without device": {deviceAnswer{Outcome: outcomePlaced, Chosen: []string{"d0"}}, "1 devices were chosen for 2 requests"},
		"a device without the way": {deviceAnswer{Outcome: outcomePlaced, Chosen: []string{"d1", "d1"}}, "does not suit request 0"},
		"an excluded device":       {deviceAnswer{Outcome: outcomePlaced, Chosen: []string{"d0", "d0"}}, "does not suit request 1"},
		"an unknown device":        {deviceAnswer{Outcome: outcomePlaced, Chosen: []string{"d0", "d2"}}, "does not suit request 1"},
		"another outcome":          {deviceAnswer{Outcome: "done"}, "is no outcome"},
	} {
		if err := p.check(tt.a); (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", what, err, tt.want)
		}
	}
	p.Requests[1] = problemRequest{Way: "vf"}
	if err := p.check(deviceAnswer{Outcome: outcomePlaced, Chosen: []string{"d0", "d0"}}); err == nil || !strings.Contains(err.Error(), "is exceeded by request 1") {
		t.Errorf("a counter that is exceeded: %v", err)
	}
}
