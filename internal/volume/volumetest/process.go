package volumetest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/nearmetal/nearmetal/internal/volume"
)

func survives(t *testing.T, r *rig) {
	v := Volume(1)
	v.Snapshots, v.Attachments, v.Generation = []string{"snap-a"}, []volume.Attachment{Attachment(1)}, 3
	r.apply(t, v)
	before := r.ready(t, v.UID)
	r.Pool = r.New(t, r.node)
	if after := r.ready(t, v.UID); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("a new process finds %+v, was %+v", after, before)
	}
	older := v
	older.Generation = 2
	r.refused(t, older, volume.ErrStale)
	v.Attachments = nil
	r.apply(t, v)
	if err := r.Purge(t.Context(), v.UID, 3); err != nil {
		t.Fatal(err)
	}
}

func closes(t *testing.T, r *rig) {
	v, other := Volume(1), Volume(2)
	v.Attachments = []volume.Attachment{Attachment(1), Attachment(2)}
	r.apply(t, v)
	r.apply(t, other)
	r.Hold(t, r.node, r.Pool, v.UID, v.Attachments[0].ClusterUID, SizeBytes/4)
	for range 2 { // it may be repeated
		if err := r.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if r.Left != nil {
		if left := r.Left(t, r.node); len(left) > 0 {
			t.Errorf("left in memory: %q", left)
		}
	}
	r.Pool = r.New(t, r.node)
	if s := r.ready(t, v.UID); len(s.Attached) > 0 || s.UsedBytes < SizeBytes/4 {
		t.Errorf("after a restart it is %+v", s)
	}
	r.apply(t, v)
	if s := r.ready(t, v.UID); len(s.Attached) != 2 {
		t.Errorf("attached again it is %+v", s)
	}
}

func parallel(t *testing.T, r *rig) {
	const count = 4
	results := make(chan error, count)
	for i := range count {
		go func() {
			v := Volume(i)
			v.Attachments = []volume.Attachment{Attachment(i)}
			v.Snapshots = []string{"snap-a"}
			err := r.Apply(t.Context(), v)
			v.Attachments, v.Generation = nil, 2
			err = errors.Join(err, r.Apply(t.Context(), v))
			if i%2 == 0 {
				err = errors.Join(err, r.Purge(t.Context(), v.UID, 2))
			}
			results <- err
		}()
	}
	for left := count; left > 0; {
		select {
		case err := <-results:
			if left--; err != nil {
				t.Error(err)
			}
		default: // and looked at meanwhile
			if _, err := r.Observe(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.Describe(t.Context())
		}
	}
	if all, err := r.Observe(t.Context()); err != nil || len(all) != count/2 {
		t.Errorf("got %+v, %v; want %d volumes", all, err, count/2)
	}
}

func names(t *testing.T, r *rig) {
	for _, name := range []string{"", ".", "..", "a/b", "../vol-1", "-a", "a b", "a\n"} {
		v := Volume(1)
		v.UID = name
		if err := r.Apply(t.Context(), v); err == nil {
			t.Errorf("a volume has the UID %q", name)
		}
		if err := r.Purge(t.Context(), name, 1); err == nil {
			t.Errorf("a volume with the UID %q was purged", name)
		}
		v = Volume(1)
		v.Snapshots = []string{name}
		if err := r.Apply(t.Context(), v); err == nil {
			t.Errorf("a snapshot has the UID %q", name)
		}
		v.Snapshots, v.Attachments = nil, []volume.Attachment{{ClusterUID: name, UserIDs: Attachment(1).UserIDs}}
		if err := r.Apply(t.Context(), v); err == nil {
			t.Errorf("a volume is attached to a cluster with the UID %q", name)
		}
	}
	v := Volume(1)
	v.Attachments = []volume.Attachment{{ClusterUID: "cluster-1"}}
	if err := r.Apply(t.Context(), v); err == nil {
		t.Error("a volume is attached to a cluster without IDs on the host")
	}
}

func cancelled(t *testing.T, r *rig) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Apply(ctx, Volume(1)); !errors.Is(err, context.Canceled) {
		t.Errorf("Apply: %v", err)
	}
	if _, err := r.Observe(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Observe: %v", err)
	}
	if err := r.Purge(ctx, Volume(1).UID, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("Purge: %v", err)
	}
	if s := r.state(t, Volume(1).UID); s != nil {
		t.Errorf("there is %+v", s)
	}
}
