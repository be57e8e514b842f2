"""A card that is not there: real numbers on the CPU, a card's memory, and streams that punish what does not wait."""
