"""Okabe & Ito's colours, told apart with every common kind of colour blindness; shapes differ too."""

PLAIN, STAGE_2, AVERAGE, LIGHT, REJECTED = "#000000", "#D55E00", "#0072B2", "#56B4E9", "#CC79A7"
