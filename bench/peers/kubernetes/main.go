// Command kubernetes answers problems of device placement by the allocator of Kubernetes' scheduler (dynamic resource allocation, structured
// parameters). It reads a problem a line from standard input, as bench/deviceproblems.go writes it, and prints an answer a line.
//
// A machine is a pool of resource slices, one for each device: its counters are a counter set, and each part that could be handed out is a
// device that consumes of it, as a driver for MIG publishes them. A device of which one part can be held is published plainly, and then the
// scheduler's stable allocator is chosen. Each request is a claim of its own. Only Allocate is timed; CEL selectors are compiled before.
//
// It is a module of its own, so that nothing of Kubernetes is a dependency of Nearmetal.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// task, problem and answer are those of bench/deviceproblems.go.
type task struct {
	AtLeastSeconds float64 `json:"at_least_seconds"`
	LimitSeconds   float64 `json:"limit_seconds"`
	Problem        problem `json:"problem"`
}

type problem struct {
	Name    string `json:"name"`
	Devices []struct {
		ID   string           `json:"id"`
		Has  map[string]int64 `json:"has"`
		Ways []string         `json:"ways"`
	} `json:"devices"`
	Ways     map[string]map[string]int64 `json:"ways"`
	Requests []struct {
		Way string   `json:"way"`
		Not []string `json:"not"`
	} `json:"requests"`
}

type answer struct {
	Outcome string   `json:"outcome"`
	Chosen  []string `json:"chosen"`
	Seconds float64  `json:"seconds"`
	Answers int      `json:"answers"`
}

const (
	driver = "bench.example"
	class  = "part"
	host   = "host"
)

type classes struct{}

func (classes) List() ([]*resourceapi.DeviceClass, error) {
	return []*resourceapi.DeviceClass{{ObjectMeta: metav1.ObjectMeta{Name: class}}}, nil
}

func (classes) Get(string) (*resourceapi.DeviceClass, error) {
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: class}}, nil
}

func main() {
	if err := serve(); err != nil {
		fmt.Fprintf(os.Stderr, "kubernetes: %v\n", err)
		os.Exit(1)
	}
}

func serve() error {
	cache := cel.NewCache(1000, cel.Features{})
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var t task
		if err := json.Unmarshal(in.Bytes(), &t); err != nil {
			return err
		}
		a, err := solve(t, cache)
		if err != nil {
			return fmt.Errorf("%s: %w", t.Problem.Name, err)
		}
		line, err := json.Marshal(a)
		if err != nil {
			return err
		}
		fmt.Println(string(line))
	}
	return in.Err()
}

func solve(t task, cache *cel.Cache) (answer, error) {
	published, shared := t.Problem.slices()
	claims := t.Problem.claims(cache)
	features := structured.Features{PartitionableDevices: shared}
	state := structured.AllocatedState{AllocatedDevices: sets.New[structured.DeviceID]()}
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: host}}
	var results []resourceapi.AllocationResult
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go stopAfter(ctx, stop, time.Duration(t.LimitSeconds*float64(time.Second)))
	times, start := 0, processorTime()
	for times == 0 || (processorTime()-start).Seconds() < t.AtLeastSeconds {
		// As the scheduler does for a pod, which then asks for each node.
		allocator, err := structured.NewAllocator(ctx, features, state, classes{}, published, cache)
		if err != nil {
			return answer{}, err
		}
		if results, err = allocator.Allocate(ctx, node, claims); errors.Is(err, context.Canceled) {
			return answer{Outcome: "gave up", Seconds: (processorTime() - start).Seconds(), Chosen: []string{}}, nil
		} else if err != nil {
			return answer{}, err
		}
		times++
	}
	a := answer{Outcome: "refused", Chosen: []string{}, Seconds: (processorTime() - start).Seconds() / float64(times)}
	if results != nil {
		a.Outcome, a.Answers = "placed", 1
		for _, r := range results {
			for _, d := range r.Devices.Results {
				id, _, _ := strings.Cut(d.Device, "-")
				a.Chosen = append(a.Chosen, id)
			}
		}
	}
	return a, nil
}

// stopAfter calls stop when the process has used so much processor time from now on.
func stopAfter(ctx context.Context, stop func(), limit time.Duration) {
	start := processorTime()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for processorTime()-start < limit {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
	stop()
}

// processorTime is what this process has used.
func processorTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}

// slices are the devices as a driver publishes them; shared says whether any are parts that share counters.
func (p problem) slices() (all []*resourceapi.ResourceSlice, shared bool) {
	asked := map[string]int64{}
	for _, r := range p.Requests {
		asked[r.Way]++
	}
	node := host
	for _, d := range p.Devices {
		parts, most := map[string]int64{}, int64(0)
		for _, way := range d.Ways {
			n := asked[way]
			for counter, takes := range p.Ways[way] {
				n = min(n, d.Has[counter]/takes)
			}
			parts[way] = n
			most += n
		}
		slice := &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: d.ID},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: driver, NodeName: &node,
				Pool: resourceapi.ResourcePool{Name: host, ResourceSliceCount: int64(len(p.Devices)), Generation: 1},
			},
		}
		if most > 1 {
			shared = true
			slice.Spec.SharedCounters = []resourceapi.CounterSet{{Name: "of-" + d.ID, Counters: counters(d.Has)}}
		}
		for _, way := range d.Ways {
			for i := range parts[way] {
				part := resourceapi.Device{
					Name: fmt.Sprintf("%s-%s-%d", d.ID, way, i),
					Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
						"on": {StringValue: &d.ID}, "way": {StringValue: &way},
					},
				}
				if most > 1 {
					part.ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: "of-" + d.ID, Counters: counters(p.Ways[way])}}
				}
				slice.Spec.Devices = append(slice.Spec.Devices, part)
			}
		}
		all = append(all, slice)
	}
	return all, shared
}

func counters(of map[string]int64) map[string]resourceapi.Counter {
	all := map[string]resourceapi.Counter{}
	for name, n := range of {
		all[name] = resourceapi.Counter{Value: *resource.NewQuantity(n, resource.DecimalSI)}
	}
	return all
}

// claims are the requests, a claim each. Their selectors are compiled.
func (p problem) claims(cache *cel.Cache) (all []*resourceapi.ResourceClaim) {
	for i, r := range p.Requests {
		terms := []string{fmt.Sprintf("device.attributes[%q].way == %q", driver, r.Way)}
		for _, id := range r.Not {
			terms = append(terms, fmt.Sprintf("device.attributes[%q].on != %q", driver, id))
		}
		expression := strings.Join(terms, " && ")
		cache.GetOrCompile(expression)
		name := fmt.Sprintf("claim-%d", i)
		all = append(all, &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)},
			Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
				Name: "part",
				Exactly: &resourceapi.ExactDeviceRequest{
					DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
					Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}},
				},
			}}}},
		})
	}
	return all
}
