package clock

import (
	"testing"
	"time"
)

func TestATimeSurvivesTheOtherClock(t *testing.T) {
	now := time.Now()
	if back := Time(Nanoseconds(now)); !back.Equal(now) || back.Sub(now) != 0 {
		t.Error(now, back)
	}
	if Nanoseconds(now.Add(3))-Nanoseconds(now) != 3 {
		t.Error("three nanoseconds are lost")
	}
	if !Time(0).IsZero() || Nanoseconds(time.Time{}) != 0 || Nanoseconds(time.Unix(0, 0)) != 0 {
		t.Error("no moment is 0 on both clocks")
	}
}
