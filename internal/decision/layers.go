package decision

import "fmt"

// noteLayers notes which layers all members have. The number only grows: what is noted frees the layers that were removed before.
func (a *applier) noteLayers(number int64) error {
	if was := a.record.LayersNumber; number <= was {
		return fmt.Errorf("all members already have layers %d, so that %d can't be noted", was, number)
	}
	a.record.LayersNumber = number
	return nil
}
