package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// saves compares saving a machine and letting it go on with virsh's save and restore of an identical one, in turn.
func (v *virtual) saves(ctx context.Context) (err error) {
	busy := load()
	if err := v.Create(ctx, 1); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.Delete(context.WithoutCancel(ctx))) }()
	t, err := v.makeTwin(ctx, "n1")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.end(context.WithoutCancel(ctx))) }()
	state, saved := filepath.Join(t.dir, "state"), map[string][]float64{}
	restored, err := v.inTurn(partSaves, v.o.vmPairs, map[string]func() (float64, error){
		byHand: func() (float64, error) {
			begun := time.Now()
			if _, err := t.virsh(ctx, "save", twinName, state); err != nil {
				return 0, err
			}
			saved[byHand] = append(saved[byHand], time.Since(begun).Seconds())
			begun = time.Now()
			if _, err := t.virsh(ctx, "restore", state); err != nil {
				return 0, err
			}
			err := t.hear(ctx)
			return time.Since(begun).Seconds(), err
		},
		nearmetal: func() (float64, error) {
			begun := time.Now()
			if _, err := v.client.SaveCluster(ctx, clusterName); err != nil {
				return 0, err
			}
			if err := v.reach(ctx, api.ClusterSaved); err != nil {
				return 0, err
			}
			saved[nearmetal] = append(saved[nearmetal], time.Since(begun).Seconds())
			begun = time.Now()
			if _, err := v.client.RestoreCluster(ctx, clusterName); err != nil {
				return 0, err
			}
			err := v.reach(ctx, api.ClusterReady)
			return time.Since(begun).Seconds(), err
		},
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(v.text, "Save and restore of one virtual machine of %d MiB, %s, beside virsh on an identical one in the same libvirtd, %d pairs, load %s to %s\n",
		vmMemory>>20, accelerator(v.hand.args), v.o.vmPairs, busy, load())
	v.compare("save", saved, 0)
	v.compare("restore to ready (SSH answers)", restored, 0)
	v.text.WriteString("\n")
	return nil
}
